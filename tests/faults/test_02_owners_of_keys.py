"""2. A submission key, and a limit of an address, belong to the tenant, then to the user, then to the address.

Behind a proxy, and on one host, all have one address: the key of one tenant must not answer "queued" for another's mail.
"""

import asyncio
import smtplib
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.relay import Stage, http_port, received, relaying, staged
from zonemta_py.admin.tokens import Role, add_token
from zonemta_py.config.schema import Config
from zonemta_py.intake.users import hash_password
from zonemta_py.relay.relay import Relay
from zonemta_py.smtp.reply import encode_address

TENANTS = ("acme", "globex")
USERS = {"ann": "acme", "bob": "globex", "app1": "", "app2": ""}
PROCESSES = [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}]


def configured(stage: Stage, directory: Path, **changes: Any) -> tuple[Config, dict[str, str]]:
    """Two tenants in two zones, users, and tokens by name: of each tenant, and two of none."""
    hashed = hash_password("secret")
    (directory / "users").write_text("".join(f"{name}:{hashed}\n" for name in USERS))
    tokens = {
        name: add_token(directory / "tokens", name, Role.SEND, name if name in TENANTS else "")
        for name in (*TENANTS, "crm", "shop")
    }
    config = stage.config(
        listeners=[
            {"address": "127.0.0.1:0", "senders": "any", "trusted_networks": ["127.0.0.0/8"],
             "auth": {"users_file": "users", "require_tls": False}},
        ],
        admin={"address": "127.0.0.1:0", "mail": True, "tokens_file": "tokens"},
        tenants={
            "acme": {"users": ["ann"], "domains": ["acme.example"], "zones": ["one"]},
            "globex": {"users": ["bob"], "domains": ["globex.example"], "zones": ["two"]},
        },
        zones={"one": {"port": stage.port}, "two": {"port": stage.port}},
        **changes,
    )  # fmt: skip
    return config, tokens


def message(tenant: str, text: str) -> bytes:
    return f"From: n@{tenant or 'none'}.example\r\nSubject: {text}\r\n\r\n{text}\r\n".encode()


async def post(
    relay: Relay, token: str, tenant: str, to: str, text: str, **fields: str
) -> tuple[int, str]:
    headers = {
        "Authorization": f"Bearer {token}", "Content-Type": "message/rfc822",
        "X-Envelope-Sender": encode_address(f"n@{tenant or 'none'}.example"),
        "X-Envelope-Recipient": encode_address(to),
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }  # fmt: skip
    url = f"http://127.0.0.1:{http_port(relay)}/mail"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=message(tenant, text), headers=headers) as answer,
    ):
        return answer.status, answer.headers["X-Smtp-Reply"]


async def smtp(relay: Relay, user: str, to: str, text: str, key: str) -> str:
    """The reply to a message of ``user``, or of this host if that is empty."""
    host, port = relay.addresses[0]
    tenant = USERS.get(user, "")

    def dialogue() -> str:
        with smtplib.SMTP(host, port, "client.example") as client:
            client.ehlo()
            if user:
                client.login(user, "secret")
            client.mail(f"n@{tenant or 'none'}.example")
            client.rcpt(to)
            code, reply = client.data(f"X-Submission-Key: {key}\r\n".encode() + message(tenant, text))
            return f"{code} {reply.decode()}"

    return await asyncio.to_thread(dialogue)


@pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
async def test_one_key_of_several_owners(directory: Path, processes: dict[str, int]) -> None:
    """Each gets its message through, and a repeat of its own is one."""
    async with staged(directory) as stage:
        sinks = [await stage.receiver(domain) for domain in ("a.example", "b.example")]
        config, tokens = configured(stage, directory, processes=processes)
        async with relaying(config) as relay:
            ids: dict[str, str] = {}
            for turn in range(2):
                for name, token in tokens.items():
                    tenant = name if name in TENANTS else ""
                    status, reply = await post(
                        relay, token, tenant, "x@a.example", f"by {name}", X_Submission_Key="1"
                    )
                    assert status == 204
                    queued = ids.setdefault(f"token {name}", reply)
                    assert (reply == queued) is True, (turn, name)
                for user in (*USERS, ""):
                    reply = await smtp(relay, user, "y@b.example", f"by {user}", "1")
                    queued = ids.setdefault(f"user {user}", reply.split()[5])
                    assert ("duplicate" in reply) == bool(turn), (user, reply)
                    assert queued in reply
            assert len(set(ids.values())) == 9
            assert len(await received(sinks[0], 4)) == 4
            assert len(await received(sinks[1], 5)) == 5


async def test_programs_with_users(directory: Path) -> None:
    """The tenant of its user has the key."""
    async with staged(directory) as stage:
        await stage.receiver("b.example")
        config, _ = configured(stage, directory)
        async with relaying(config) as relay:
            text = message("acme", "hello")
            first = await relay.enqueue("n@acme.example", ["x@b.example"], text, key="k", user="ann")
            assert (
                await relay.enqueue("n@acme.example", ["x@b.example"], text, key="k", user="ann")
                == first
            )
            text = message("globex", "hello")
            other = await relay.enqueue("n@globex.example", ["x@b.example"], text, key="k", user="bob")
            assert other != first


async def test_limits_of_an_address(directory: Path) -> None:
    """One tenant uses up what it may send from the proxy's address; the other, and users, send theirs."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        config, tokens = configured(stage, directory, limits={"address": {"messages": ["2/h"]}})
        async with relaying(config) as relay:
            for tenant in TENANTS:
                found = [
                    await post(relay, tokens[tenant], tenant, "x@a.example", f"{n}") for n in range(3)
                ]
                assert [status for status, _ in found] == [204, 204, 429]
                assert f"Address 127.0.0.1 of tenant {tenant} has sent 2 messages in 1 h" in found[2][1]
            for user in ("app1", "app2", ""):
                replies = [await smtp(relay, user, "x@a.example", f"{n}", f"{n}") for n in range(2)]
                assert all(reply.startswith("250") for reply in replies), user


async def test_a_token_of_none_in_the_network_of_a_tenant(directory: Path) -> None:
    """The mail is the tenant's, and so is the key: by another token it is the same."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        _, tokens = configured(stage, directory)
        document = {"acme": {"networks": ["127.0.0.1/32"], "domains": ["acme.example"]}}
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "tokens_file": "tokens"},
            tenants={**document, "globex": {"domains": ["globex.example"]}},
        )
        async with relaying(config) as relay:
            names = ("crm", "shop", "acme")
            replies = [
                await post(relay, tokens[name], "acme", "x@a.example", "one", X_Submission_Key="1")
                for name in names
            ]
            assert {status for status, _ in replies} == {204}
            assert len({reply for _, reply in replies}) == 1
            await received(sink, 1)
        assert len(sink.messages) == 1
