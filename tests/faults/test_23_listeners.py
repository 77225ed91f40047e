"""23. A listener hides its clients, has a proxy in front of TLS, ignores what it cannot use, and offers what AUTH will allow."""

import asyncio
import ssl
from base64 import b64encode
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.listener import certificate, listening, users_file
from tests.kit.proxy import binary_header, proxy_header
from tests.kit.relay import empty, logged_events, received, relaying, send, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.core.errors import NotAccepted

ONE, MANY = {"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}
UNUSABLE = (
    b"X-Expire: 2026-12-31\r\nX-Campaign: " + b"c" * 65 + b"\r\nX-Tags: a,b\r\nSubject: x\r\n\r\nhi\r\n"
)


@pytest.mark.parametrize("processes", [ONE, MANY], ids=["0/0", "2/2"])
async def test_hidden_clients_and_unusable_labels(directory: Path, processes: dict[str, int]) -> None:
    """Of two listeners one hides its clients and refuses labels; both receivers see what theirs says, and the events have all."""
    listeners = [
        {"address": "127.0.0.1:0", "received": "short", "options": {"unusable": "refuse"}},
        {"address": "127.0.0.1:0"},
    ]
    async with staged(directory) as stage:
        short, full = await stage.receiver("a.example"), await stage.receiver("b.example")
        async with relaying(stage.config(listeners=listeners, processes=processes)) as relay:
            await send(relay, ["u@a.example"])
            async with await RawClient.connect(relay.addresses[0][1]) as raw:
                await raw.ehlo()
                assert (await raw.message(UNUSABLE + b".\r\n")).startswith("550 5.6.0")
            with pytest.raises(NotAccepted, match=r"^550 5\.6\.0"):  # its listener is the first
                await relay.enqueue("s@sender.example", ["u@b.example"], UNUSABLE)
            async with await RawClient.connect(relay.addresses[1][1]) as raw:
                await raw.ehlo()
                assert (await raw.message(UNUSABLE + b".\r\n", "u@b.example")).startswith("250")
                wait = UNUSABLE.replace(b"X-Expire: 2026-12-31", b"X-Not-Before: 2099-12-31")
                assert (await raw.message(wait + b".\r\n", "u@b.example")).startswith("550 5.6.0")
            [hidden] = await received(short, 1)
            [shown] = await received(full, 1)
            await empty(relay)
    field = hidden.data.partition(b"\r\nMessage-ID")[0]
    assert field.startswith(b"Received: by relay.example with ESMTP id ")
    assert b"127.0.0.1" not in hidden.data and b"client.example" not in hidden.data
    assert shown.data.startswith(
        b"Received: from client.example ([127.0.0.1])\r\n\tby relay.example with ESMTP id "
    )
    assert b"X-Campaign" not in shown.data and b"X-Expire" not in shown.data
    first, second = logged_events(directory, "accepted")
    assert (first["client_ip"], first["helo"], first["ignored"]) == ("127.0.0.1", "client.example", [])
    assert (second["campaign"], second["tags"], second["expires_ms"]) == ("", ["a", "b"], 0)
    assert [text.split(" is ")[0] for text in second["ignored"]] == ["A value in X-Campaign", "X-Expire"]


BEHIND = "    proxies: [127.0.0.0/8]\n    trusted_networks: [192.0.2.0/24]\n    max_sessions: 8"


async def _to_tls(
    port: int, first: bytes, trust: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that sends ``first`` in clear and then begins TLS, as a proxy forwards it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for at in range(0, len(first), 5):
        writer.write(first[at : at + 5])
        await writer.drain()
    await asyncio.wait_for(writer.start_tls(trust, server_hostname="localhost"), scaled(20))
    return reader, writer


@pytest.mark.parametrize("version", [1, 2])
async def test_a_proxy_before_implicit_tls(tmp_path: Path, version: int) -> None:
    """The client that the header names has the rights; the proxy, a health check, has none here."""
    cert, key, trust = certificate(tmp_path)
    tls = f"    tls: {{mode: implicit, certificate_file: {cert}, key_file: {key}}}\n"
    async with listening(tmp_path, tls + BEHIND) as relay:
        for header, reply in (
            (proxy_header("192.0.2.7", version), b"250"),
            (proxy_header("198.51.100.1", version), b"530"),
            (binary_header(0x20, 0, b"") if version == 2 else b"PROXY UNKNOWN\r\n", b"530"),
        ):
            reader, writer = await _to_tls(relay.address.port, header, trust)
            assert (await reader.readline()).startswith(b"220 ")
            writer.write(b"EHLO c.example\r\nMAIL FROM:<a@b.example>\r\nQUIT\r\n")
            said = await asyncio.wait_for(reader.read(), scaled(20))
            assert said.splitlines()[-2].startswith(reply)
            assert said.endswith(b"221 2.0.0 Bye\r\n")
            writer.close()
        await until(lambda: not relay.listener.context.sessions, "the ends of the sessions")


async def test_no_header_before_tls(tmp_path: Path) -> None:
    """Without a header, or with a wrong one, the connection ends, and its place is free."""
    cert, key, _ = certificate(tmp_path)
    tls = f"    tls: {{mode: implicit, certificate_file: {cert}, key_file: {key}}}\n"
    async with listening(tmp_path, tls + BEHIND) as relay:
        for data in (
            b"\x16\x03\x01\x02\0" + b"x" * 200,
            b"PROXY TCP4 x y 1 2\r\n",
            b"PROXY " + b"x" * 200,
            b"",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.address.port)
            writer.write(data)
            writer.write_eof()
            try:
                assert await asyncio.wait_for(reader.read(), scaled(20)) == b""
            except ConnectionError:
                pass  # data were left unread
            writer.close()
        await until(lambda: not relay.listener.context.sessions, "the ends of the sessions")


async def test_strangers_behind_a_proxy_before_tls_are_limited(tmp_path: Path) -> None:
    """The proxy is trusted, not its clients: one of them gets a quarter of the sessions."""
    cert, key, trust = certificate(tmp_path)
    tls = f"    tls: {{mode: implicit, certificate_file: {cert}, key_file: {key}}}\n"
    async with listening(tmp_path, tls + BEHIND) as relay:
        open_ = [
            await _to_tls(relay.address.port, proxy_header("198.51.100.1", 1), trust) for _ in range(2)
        ]
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await _to_tls(relay.address.port, proxy_header("198.51.100.1", 1), trust)
        open_.append(await _to_tls(relay.address.port, proxy_header("198.51.100.2", 1), trust))
        for _, writer in open_:
            writer.close()


async def test_extensions_before_auth(tmp_path: Path) -> None:
    """A client that will authenticate learns them from its only EHLO; without AUTH nothing is accepted."""
    auth = (
        f"    trusted_networks: []\n    auth: {{users_file: {users_file(tmp_path)}, require_tls: false}}"
    )
    async with listening(tmp_path, auth) as relay, await RawClient.connect(relay.address.port) as raw:
        offered = await raw.ehlo()
        assert "FUTURERELEASE " in offered and "DELIVERBY" in offered
        mail = "MAIL FROM:<a@b.example> HOLDFOR=3600 BY=7200;R"
        assert (await raw.command(mail)).startswith("530")
        plain = b64encode(b"\0news\0secret").decode()
        assert (await raw.command(f"AUTH PLAIN {plain}")).startswith("235")
        assert (await raw.command(mail)).startswith("250")


@pytest.mark.parametrize("tls", [False, True], ids=["no users", "before TLS"])
async def test_extensions_are_not_offered_to_strangers(tmp_path: Path, tls: bool) -> None:
    """Who may not authenticate, or not yet, is offered neither."""
    extra = "    trusted_networks: []"
    if tls:
        cert, key, _ = certificate(tmp_path)
        extra += f"\n    tls: {{mode: starttls, certificate_file: {cert}, key_file: {key}}}"
        extra += f"\n    auth: {{users_file: {users_file(tmp_path)}}}"
    async with listening(tmp_path, extra) as relay, await RawClient.connect(relay.address.port) as raw:
        offered = await raw.ehlo()
        assert "FUTURERELEASE" not in offered and "DELIVERBY" not in offered
