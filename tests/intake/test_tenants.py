"""What a client may send as: every user, envelope sender, form of From, zone and way in; nothing is signed for others."""

import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.deadlines import until
from tests.kit.dkim import write_key
from tests.kit.http import mail_server
from tests.kit.listener import HOSTNAME, listening, make_config
from tests.kit.queue import events, opened
from tests.kit.smtp_client import RawClient
from zonemta_py.config.schema import Config
from zonemta_py.config.tenants import Tenants
from zonemta_py.core import clock
from zonemta_py.core.errors import NotAccepted
from zonemta_py.delivery.dkim import Signer, load_keys
from zonemta_py.intake.http import PATH
from zonemta_py.intake.inject import Injector, enqueue
from zonemta_py.intake.users import hash_password
from zonemta_py.policies import Envelope, EnvelopePolicy
from zonemta_py.queue.format.records import EnvelopeRecord
from zonemta_py.queue.messages import read_message
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.smtp.reply import encode_address, read_reply

DOMAINS = {"ann": "acme.example", "bob": "other.example", "eve": "other.example"}
FOREIGN = {"ann": "other.example", "bob": "acme.example", "eve": "acme.example"}
ZONES = {"": True, "acme": True, "default": True, "secret": False, "no such zone": False}
LISTENER = "    trusted_networks: []\n    max_errors: 1000000\n    auth: {users_file: users, require_tls: false}"

# OWN and OTHER are a domain of the sender and a foreign one.
GOOD = [
    "From: n@OWN", "From: <n@OWN>", "From: News <n@OWN>", "from:n@OWN", "From : N@OWN",
    "From: News\r\n\t<n@OWN>", 'From: "ceo@OTHER" <n@OWN>', "From: n@OWN (News)", "From: n@OWN <n@OWN>",
    "From: =?utf-8?q?Caf=C3=A9_=40_Work?= <n@OWN>", "From: A <a@OWN>, B <b@OWN>\r\nSender: a@OWN",
    "From: Z\u00fcrich <n@OWN>", 'From: "Smith, Ann" <n@OWN>', "From: ann (of acme) <n@OWN>", "From: n@OWN\r\nReply-To: x@OTHER\r\nTo: y@OTHER",
]  # fmt: skip
BAD = [
    "From: ceo@OTHER", "From: CEO <ceo@OTHER>", "FROM: ceo@OTHER", "From : ceo@OTHER", "From:\r\n ceo@OTHER",
    "From: n@OWN\r\nFrom: ceo@OTHER", "From: ceo@OTHER\r\nfrom: n@OWN", "From: n@OWN\r\nFrom: n@OWN",
    "From: n@OWN\r\nSender: ceo@OTHER", "From: n@OWN\r\nSender: n@OWN\r\nSender: n@OWN",
    "From: n@OWN\r\nSender:", "From: n@OWN, ceo@OTHER", "From: ceo@OTHER, n@OWN", "From: ceo@OTHER <n@OWN>",
    "From: =?utf-8?q?ceo=40OTHER?= <n@OWN>", "From: =?utf-8?b?B64?= <n@OWN>",
    "From: =?utf-8?q?ceo=40OTHER?=", "From: =?nope?q?ceo?= <n@OWN>", "From: group: n@OWN;",
    "From: x: ceo@OTHER, n@OWN;", "From: <@OTHER:n@OWN>", "From: <@OWN:ceo@OTHER>", "From: ceo@OTHER@OWN",
    "From: n@OWN@OTHER", 'From: "ceo@OTHER"@OWN', 'From: "x"ceo@OTHER <n@OWN>', "From: ceo\uff20OTHER@OWN",
    "From: ceo@OTHER\uff0c <n@OWN>", 'From: (" ) <ceo@OTHER>, (" ) <n@OWN>', "From: (a@OTHER) n@OWN",
    "From: n(x)@OWN", "From: n@OWN <ceo@OTHER>", "From: <ceo@OTHER> <n@OWN>", "From: <n@OWN> ceo@OTHER",
    "From: <n@OWN", "From: n@OWN>", "From: n @OWN", "From: n@OWN.", "From: n@OWN.OTHER", "From: n@xOWN",
    "From: n@[127.0.0.1]", "From: n", "From:", "From: <>", "Subject: no author", "From: n@O\r\n WN",
    "From: ceo@ OTHER <n@OWN>", "From: ceo @OTHER <n@OWN>", "From: ceo@(x)OTHER <n@OWN>", "From: ceo(x)@OTHER <n@OWN>",
    'From: "ceo" @ OTHER <n@OWN>', "From: @OTHER <n@OWN>", "From: n@OWN(x).OTHER <n@OWN>", "From: n@OWN .OTHER <n@OWN>",
    "From: =?utf-8?q?ceo_=40_OTHER?= <n@OWN>", "From: ceo =?utf-8?q?=40OTHER?= <n@OWN>",
    "From: n%OWN@OTHER", 'From: n@OWN"', "From: n@OWN\\", "From: n@b\u00fccher.OTHER", "From: \x0bceo@OTHER <n@OWN>",
]  # fmt: skip


def fields(form: str, user: str) -> bytes:
    encoded = base64.b64encode(f"ceo@{FOREIGN[user]}>,".encode()).decode()
    text = form.replace("OWN", DOMAINS[user]).replace("OTHER", FOREIGN[user]).replace("B64", encoded)
    return text.encode() + b"\r\n"


HASH = hash_password("secret")


def write_files(directory: Path) -> None:
    (directory / "users").write_text("".join(f"{name}:{HASH}\n" for name in DOMAINS))
    for domain in DOMAINS.values():
        if not (directory / domain).exists():
            write_key(directory / domain, "ed25519")


def rest(directory: Path, *, local: str = "acme") -> str:
    """Two tenants, of which ``local`` has this host."""
    write_files(directory)
    networks = {local: "127.0.0.1"}
    return f"""
tenants:
  acme:
    users: [ann]
    networks: [{networks.get("acme", "192.0.2.1")}/32]
    domains: [acme.example, "*.acme.example"]
    zones: [acme, default]
  other: {{users: [bob], networks: [{networks.get("other", "192.0.2.2")}/32], domains: [other.example]}}
zones: {{acme: {{}}, secret: {{}}}}
dkim:
  keys:
    - {{domain: acme.example, selector: s, key_file: {directory}/acme.example}}
    - {{domain: other.example, selector: s, key_file: {directory}/other.example}}
"""


async def signed_for(config: Config, message: str, meta: EnvelopeRecord) -> set[str]:
    """The domains of the signatures of a message."""
    signer = Signer(config.dkim, load_keys(config.dkim), Tenants(config.tenants))

    async def body_hash() -> bytes:
        return bytes(32)

    made = await signer.signatures(message, meta.header, body_hash, meta.origin.tenant)
    signer.close()
    return set(re.findall(r"d=([^;]+);", made.decode()))


async def check(config: Config, queue: Queue, reply: str, user: str, *, good: bool, why: object) -> None:
    """The reply is as expected, and what was accepted is signed for the domains of ``user`` only."""
    assert reply.startswith("250" if good else ("550 5.7.1", "553 5.7.1")), (why, reply)
    if good:
        message = reply.rpartition(" ")[2]
        meta, _ = read_message(queue.store, message)
        assert await signed_for(config, message, meta) == {DOMAINS[user]}, why
        assert meta.origin.tenant == {"ann": "acme", "bob": "other"}[user]


def senders(user: str) -> dict[str, bool]:
    """Envelope senders, and whether a user may send from each."""
    return {
        f"s@{DOMAINS[user]}": True,
        f"s@{FOREIGN[user]}": False,
        f"s@x.{DOMAINS[user]}": user == "ann",
    }


def allowed_zones(user: str) -> dict[str, bool]:
    return ZONES if user == "ann" else {"": True, "secret": True, "no such zone": False}


CASES = {
    user: [
        (form, sender, zone)
        for form, sender, zone in product([*GOOD, *BAD], senders(user), allowed_zones(user))
    ]
    for user in ("ann", "bob")
}


def is_good(user: str, form: str, sender: str, zone: str) -> bool:
    return form in GOOD and senders(user)[sender] and allowed_zones(user)[zone]


def test_the_matrix_is_large() -> None:
    assert sum(map(len, CASES.values())) > 1000


@pytest.mark.usefixtures("queue_client")
@pytest.mark.parametrize("user", CASES)
async def test_over_smtp(tmp_path: Path, user: str) -> None:
    """Each refusal is counted in an event with user and tenant."""
    config = make_config(tmp_path, LISTENER, rest(tmp_path))
    async with listening(tmp_path, LISTENER, rest(tmp_path)) as which:
        refused = 0
        async with await signed_in(which.address.port, user) as client:
            for form, sender, zone in CASES[user]:
                good = is_good(user, form, sender, zone)
                reply = await client.command(f"MAIL FROM:<{sender}>")
                if reply.startswith("250"):
                    await client.command("RCPT TO:<x@a.example>")
                    await client.command("DATA")
                    await client.send(zone_field(zone) + fields(form, user) + b"\r\nhello\r\n.\r\n")
                    reply = await client.reply()
                await check(config, which.queue, reply, user, good=good, why=(form, sender, zone))
                refused += not good

        def rejections() -> list[dict[str, Any]]:
            return [e for e in events(which.queue.store) if e["event"] == "rejected"]

        which.listener.context.rejections.flush()
        await until(lambda: sum(e["count"] for e in rejections()) == refused, "every refusal")
        found = rejections()
        assert {(e["user"], e["tenant"]) for e in found} == {
            (user, {"ann": "acme", "bob": "other"}[user])
        }


async def signed_in(port: int, user: str) -> RawClient:
    client = await RawClient.connect(port)
    await client.ehlo()
    secret = base64.b64encode(f"\0{user}\0secret".encode()).decode()
    assert (await client.command(f"AUTH PLAIN {secret}")).startswith("235")
    return client


def zone_field(zone: str) -> bytes:
    return f"X-Sending-Zone: {zone}\r\n".encode() if zone else b""


@asynccontextmanager
async def injecting(
    directory: Path, *policies: EnvelopePolicy, local: str = "acme"
) -> AsyncIterator[tuple[Config, Queue, Injector]]:
    config = make_config(directory, "", rest(directory, local=local))
    async with opened(directory / "queue", clock.now_ms, store="memory") as queue:
        yield config, queue, Injector(queue, make_router(config), config, HOSTNAME, policies)


@pytest.mark.parametrize("user", CASES)
async def test_from_a_program(tmp_path: Path, user: str) -> None:
    async with injecting(tmp_path) as (config, queue, _):
        for form, sender, zone in CASES[user]:
            data = zone_field(zone) + fields(form, user) + b"\r\nhello\r\n"
            reply = await from_program(config, queue, sender, data, user)
            good = is_good(user, form, sender, zone)
            await check(config, queue, reply, user, good=good, why=(form, sender, zone))


async def from_program(config: Config, queue: Queue, sender: str, data: bytes, user: str) -> str:
    injector = Injector(queue, make_router(config), config, HOSTNAME)
    try:
        return f"250 {await enqueue(injector, sender, ['x@a.example'], data, user=user)}"
    except NotAccepted as exc:
        return str(exc)


@pytest.mark.parametrize("user", CASES)
async def test_over_http(tmp_path: Path, user: str) -> None:
    """The tenant is that of the client's address."""
    local = {"ann": "acme", "bob": "other"}[user]
    async with injecting(tmp_path, local=local) as (config, queue, _):
        listener = mail_server(lambda: Injector(queue, make_router(config), config, HOSTNAME))
        await listener.start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.ports[0]}") as client:
            for form, sender in product([*GOOD, *BAD], senders(user)):
                headers = {
                    "Content-Type": "message/rfc822", "Authorization": "Bearer secret",
                    "X-Envelope-Sender": encode_address(sender),
                    "X-Envelope-Recipient": encode_address("x@a.example"),
                }  # fmt: skip
                data = fields(form, user) + b"\r\nhello\r\n"
                async with client.post(PATH, headers=headers, data=data) as response:
                    reply = str(read_reply(response.headers["X-Smtp-Reply"]))
                good = is_good(user, form, sender, "")
                await check(config, queue, reply, user, good=good, why=(form, sender))
        await listener.close()


@pytest.mark.parametrize("form", [*GOOD, *BAD])
async def test_what_a_policy_writes(tmp_path: Path, form: str) -> None:
    """The header that a policy returns is checked, not the one that it got."""

    def rewrite(envelope: Envelope) -> None:
        envelope.header = fields(form, "ann")

    for sent in (b"From: n@acme.example\r\n", b"From: ceo@other.example\r\n"):
        async with injecting(tmp_path, rewrite) as (config, queue, injector):
            try:
                data = sent + b"\r\nhello\r\n"
                message = await enqueue(injector, "s@acme.example", ["x@a.example"], data, user="ann")
                reply = f"250 {message}"
            except NotAccepted as exc:
                reply = str(exc)
            if reply != "421 4.3.0 Unhandled system error":  # not a valid header
                await check(config, queue, reply, "ann", good=form in GOOD, why=form)


async def test_a_user_and_a_host_without_a_tenant(tmp_path: Path) -> None:
    """They may not send; with senders: any they may, and nothing is signed for a tenant."""
    sent = b"From: ceo@acme.example\r\n\r\nhello\r\n.\r\n"
    async with listening(tmp_path, LISTENER, rest(tmp_path, local="")) as which:
        async with await RawClient.connect(which.address.port) as client:
            await client.ehlo()
            assert (await client.command("MAIL FROM:<s@acme.example>")).startswith("530")
        async with await signed_in(which.address.port, "eve") as client:
            reply = await client.command("MAIL FROM:<s@acme.example>")
            assert reply == "550 5.7.1 eve belongs to no tenant"
    listener = LISTENER + "\n    senders: any"
    config = make_config(tmp_path, listener, rest(tmp_path, local=""))
    async with listening(tmp_path, listener, rest(tmp_path, local="")) as which:
        async with await signed_in(which.address.port, "eve") as client:
            reply = await client.message(sent, sender="s@acme.example")
        message = reply.rpartition(" ")[2]
        meta, _ = read_message(which.queue.store, message)
        assert meta.origin.tenant == ""
        assert await signed_for(config, message, meta) == set()
        foreign = sent.replace(b"acme", b"other")
        async with await signed_in(which.address.port, "ann") as client:
            reply = await client.message(foreign, sender="s@acme.example")
            assert reply == "553 5.7.1 ann may not send as ceo@other.example"


async def test_the_null_sender(tmp_path: Path) -> None:
    """For users from anywhere it is refused; a host in a network of the tenant may send reports."""
    async with (
        listening(tmp_path, LISTENER, rest(tmp_path, local="")) as which,
        await signed_in(which.address.port, "ann") as client,
    ):
        reply = await client.command("MAIL FROM:<>")
        assert reply == "553 5.7.1 ann may not send with the null sender"
    async with listening(tmp_path, LISTENER, rest(tmp_path)) as which:
        report = b"From: postmaster@acme.example\r\n\r\nhello\r\n.\r\n"
        async with await RawClient.connect(which.address.port) as client:
            await client.ehlo()
            assert (await client.message(report, sender="")).startswith("250")
            reply = await client.message(report.replace(b"acme", b"other"), sender="")
            assert reply.startswith("553 5.7.1 127.0.0.1 may not send as")


async def test_programs_of_the_relay_itself(tmp_path: Path) -> None:
    """Without a user they are of no tenant: any sender, and no signature of a tenant's domain."""
    async with injecting(tmp_path) as (config, queue, _):
        for domain in ("acme.example", "own.example"):
            data = f"From: n@{domain}\r\n\r\nhello\r\n".encode()
            reply = await from_program(config, queue, f"s@{domain}", data, "")
            message = reply.rpartition(" ")[2]
            meta, _ = read_message(queue.store, message)
            assert await signed_for(config, message, meta) == set()
