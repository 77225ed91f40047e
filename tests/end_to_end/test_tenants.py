"""Tenants in a whole relay: what reaches the receiver, where its senders are, and after a reload."""

import asyncio
import base64
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kit.deadlines import eventually, until
from tests.kit.dkim import verified, write_key
from tests.kit.relay import empty, logged_events, received, relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.cli.main import main
from zonemta_py.config.load import load_config, parse_config
from zonemta_py.config.schema import Config, MessageOptions
from zonemta_py.core.errors import NotAccepted
from zonemta_py.delivery.dkim import Key
from zonemta_py.intake.options import of_header
from zonemta_py.intake.users import hash_password
from zonemta_py.queue.format.records import NO_OPTIONS, DeliveryOptions
from zonemta_py.queue.upkeep.inspect import recipient_rows
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Script, Step

PAGE = Path(__file__).parents[2] / "docs/tenants.md"


async def signed_in(relay: Relay, user: str) -> RawClient:
    client = await RawClient.connect(relay.addresses[0].port)
    await client.ehlo()
    secret = base64.b64encode(f"\0{user}\0secret".encode()).decode()
    assert (await client.command(f"AUTH PLAIN {secret}")).startswith("235")
    return client


def message(author: str, *fields: str) -> bytes:
    return "\r\n".join([f"From: {author}", *fields, "Subject: x", "", "hello", ".", ""]).encode()


def write_tenants(directory: Path, domains: str) -> None:
    (directory / "tenants.d").mkdir(exist_ok=True)
    (directory / "tenants.d/a.yaml").write_text(f"acme: {{users: [ann], domains: {domains}}}\n")
    (directory / "tenants.d/b.yaml").write_text("globex: {users: [bob], domains: [globex.example]}\n")


@pytest.mark.parametrize("processes", [{"receivers": 0, "senders": 0}, {"receivers": 1, "senders": 1}])
async def test_signatures_events_and_a_reload(directory: Path, processes: dict[str, int]) -> None:
    """Both tenants are signed by their own keys; a domain that is taken away is refused and not signed."""
    keys = {name: write_key(directory / f"{name}.pem", "ed25519") for name in ("acme", "globex")}
    hashed = hash_password("secret")
    (directory / "users").write_text(f"ann:{hashed}\nbob:{hashed}\n")
    write_tenants(directory, '[acme.example, "*.acme.example"]')
    listener = {
        "address": "127.0.0.1:0", "trusted_networks": [],
        "auth": {"users_file": str(directory / "users"), "require_tls": False},
    }  # fmt: skip
    dkim = {
        "keys": [
            {"domain": f"{name}.example", "selector": "s", "key_file": str(path)}
            for name, path in keys.items()
        ]
    }
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        stage.config(
            listeners=[listener], dkim=dkim, processes=processes,
            tenants={"include": "tenants.d/*.yaml"}, routing=[],
        )  # fmt: skip
        path = directory / "zonemta.yaml"
        async with relaying(load_config(path)) as relay:
            async with await signed_in(relay, "ann") as client:
                data = message("n@news.acme.example", "X-Campaign: spring", "X-Tags: a, b,a")
                assert (await client.message(data, "1@a.example", sender="s@acme.example")).startswith(
                    "250"
                )
                reply = await client.message(
                    message("n@globex.example"), "x@a.example", sender="s@acme.example"
                )
                assert reply == "553 5.7.1 ann may not send as n@globex.example"
            async with await signed_in(relay, "bob") as client:
                reply = await client.message(
                    message("n@globex.example"), "2@a.example", sender="s@globex.example"
                )
                assert reply.startswith("250")
            await relay.enqueue("s@acme.example", ["3@a.example"], message("n@acme.example")[:-3])
            await received(sink, 3)
            await empty(relay)
            write_tenants(directory, "[other.example]")
            await relay.reload()

            async def refused() -> bool:
                async with await signed_in(relay, "ann") as client:
                    reply = await client.command("MAIL FROM:<s@acme.example>")
                    return reply == "553 5.7.1 ann may not send as s@acme.example"

            await eventually(refused, "the receivers to know the new tenants")
    found = {m.recipients[0]: m.data for m in sink.messages}
    signers = {
        to: re.findall(rb"DKIM-Signature:[^;]*;[^;]*;[^;]*; d=([^;]*);", data)
        for to, data in found.items()
    }
    assert signers == {
        "1@a.example": [b"acme.example"],
        "2@a.example": [b"globex.example"],
        "3@a.example": [],
    }
    for to, name in (("1@a.example", "acme"), ("2@a.example", "globex")):
        assert verified(found[to], Key(f"{name}.example", "s", keys[name])) == [True]
    assert b"X-Campaign" not in found["1@a.example"]
    events = {event["recipient"]: event for event in logged_events(directory, "delivered")}
    delivered = events["1@a.example"]
    assert [delivered[name] for name in ("tenant", "campaign", "tags", "submitter")] == [
        "acme",
        "spring",
        ["a", "b"],
        "ann",
    ]
    assert events["3@a.example"]["tenant"] == ""
    assert {event["tenant"] for event in logged_events(directory, "rejected")} == {"acme"}


@pytest.mark.parametrize("processes", [{"receivers": 0, "senders": 0}, {"receivers": 1, "senders": 1}])
async def test_a_suspended_tenant(directory: Path, processes: dict[str, int]) -> None:
    """Its queued mail stays from the next lease on, over a restart too, and all of it leaves after resume."""
    (directory / "users").write_text(f"ann:{hash_password('secret')}\n")
    listener = {
        "address": "127.0.0.1:0", "trusted_networks": [],
        "auth": {"users_file": str(directory / "users"), "require_tls": False},
    }  # fmt: skip
    tenants = {
        name: {"users": [user], "domains": [f"{name}.example"]}
        for name, user in (("acme", "ann"), ("globex", "bob"))
    }
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        config = stage.config(listeners=[listener], processes=processes, tenants=tenants)
        page = directory / "zonemta.yaml"
        async with relaying(config) as relay:
            for number in range(30):
                for name, user in (("acme", "ann"), ("globex", "bob")):
                    data = f"From: n@{name}.example\r\n\r\nhello\r\n".encode()
                    to = [f"{name}{number}@a.example", f"{name}.too{number}@a.example"]
                    await relay.enqueue(f"s@{name}.example", to, data, user=user)
            result = await asyncio.to_thread(
                zonemta, "suspend", "--tenant", "acme", "-c", page, "--reason", "invoice"
            )
            assert result.output == "suspended tenant acme\n"
            with pytest.raises(NotAccepted, match=r"^454 4\.7\.0 Tenant acme is suspended$"):
                await relay.enqueue("s@acme.example", ["x@a.example"], data, user="ann")

            async def refused() -> bool:
                async with await signed_in(relay, "ann") as client:
                    reply = await client.command("MAIL FROM:<s@acme.example>")
                    return reply == "454 4.7.0 Tenant acme is suspended"

            await eventually(refused, "the receivers to know")
            await until(lambda: len(held(relay)) == 60, "the mail of the tenant to be held")
            sink.script = Script(())
            await until(
                lambda: len(list(recipient_rows(relay.queue.store))) == 60, "all other mail to leave"
            )
        async with relaying(config) as relay:
            assert {row["recipient"][:4] for row in held(relay)} == {"acme"}
            await relay.flush()
            result = await asyncio.to_thread(zonemta, "tenant", "list", "-c", page)
            assert "UTC: invoice" in result.output
            result = await asyncio.to_thread(zonemta, "resume", "--tenant", "acme", "-c", page)
            assert result.output == "resumed acme, released 60 recipients\n"
            await empty(relay)
        got = Counter(to for each in sink.messages for to in each.recipients)
        assert len(got) == 120
        assert set(got.values()) == {1}


async def test_a_suspended_user(directory: Path) -> None:
    """Open sessions and queued mail; the other user of the tenant goes on."""
    (directory / "users").write_text(f"ann:{hash_password('secret')}\nbob:{hash_password('secret')}\n")
    listener = {
        "address": "127.0.0.1:0", "trusted_networks": [],
        "auth": {"users_file": str(directory / "users"), "require_tls": False},
    }  # fmt: skip
    tenants = {"acme": {"users": ["ann", "bob"], "domains": ["acme.example"]}}
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        page = directory / "zonemta.yaml"
        async with relaying(stage.config(listeners=[listener], tenants=tenants)) as relay:
            ann, bob = [await signed_in(relay, user) for user in ("ann", "bob")]
            for client, name in ((ann, "ann"), (bob, "bob")):
                sent = await client.message(
                    message("n@acme.example"), f"{name}@a.example", sender="s@acme.example"
                )
                assert sent.startswith("250")
            result = await asyncio.to_thread(
                zonemta, "suspend", "--user", "ann", "-c", page, "--reason", "stolen"
            )
            assert result.output == "suspended user ann\n"
            listed = await asyncio.to_thread(zonemta, "user", "list", "-c", page)
            assert "stolen" in listed.output

            async def refused() -> bool:
                reply = await ann.command("MAIL FROM:<s@acme.example>")
                await ann.command("RSET")
                return reply == "454 4.7.0 User ann is suspended"

            await eventually(refused, "a refusal")
            assert (await bob.command("MAIL FROM:<s@acme.example>")).startswith("250")
            for client in (ann, bob):
                client.close()
            await until(lambda: [row["recipient"] for row in held(relay)] == ["ann@a.example"], "held")
            sink.script = Script(())
            await until(lambda: len(sink.messages) == 1, "the other's mail")
            result = await asyncio.to_thread(zonemta, "resume", "--user", "ann", "-c", page)
            assert result.output == "resumed ann, released 1 recipient\n"
            await empty(relay)


def held(relay: Relay) -> list[dict[str, Any]]:
    return [row for row in recipient_rows(relay.queue.store) if row["state"] == "held"]


def zonemta(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_the_examples_of_the_page(directory: Path) -> None:
    """Each is a whole configuration."""
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (directory / "tenants.d").mkdir()
    (directory / "tenants.d/a.yaml").write_text("acme: {domains: [acme.com]}")
    tenants = [parse_config(text, directory / "z.yaml").tenants for text in examples]
    assert [sorted(each) for each in tenants] == [["acme", "globex"], ["acme"]]
    assert (tenants[0]["acme"].weight, tenants[0]["globex"].zones) == (2, None)


@pytest.mark.parametrize("page", ["limits.md", "scan.md"])
def test_the_examples_of_other_pages(directory: Path, page: str) -> None:
    """They are whole configurations, too."""
    examples = re.findall(r"```yaml\n(.*?)```", (PAGE.parent / page).read_text(), re.DOTALL)
    assert examples
    for text in examples:
        config = parse_config(text, directory / "z.yaml")
        assert config != Config()


def test_the_message_of_the_options_page() -> None:
    """Its fields are taken as the page says, a day before its time."""
    [example] = re.findall(r"```\n(From: .*?)```", (PAGE.parent / "options.md").read_text(), re.DOTALL)
    values = dict(line.lower().split(": ", 1) for line in example.splitlines())
    now_ms = round(datetime(2026, 11, 23, 8, tzinfo=UTC).timestamp() * 1000)
    found = of_header(MessageOptions(), values, NO_OPTIONS, now_ms)
    assert (found.campaign, found.tags) == ("autumn-sale", ("sale", "shoes"))
    begins_ms = now_ms + 24 * 3_600_000
    assert found.delivery == DeliveryOptions(begins_ms, begins_ms + 6 * 3_600_000, silent=True)
