"""Mail by HTTP: a real client, a real queue, and what goes wrong between them."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import scaled, until
from tests.kit.queue import everything
from tests.kit.relay import ONE_PROCESS, empty, http_port, logged_events, relaying, staged
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.relay.relay import Relay
from zonemta_py.smtp.reply import (
    Reply,
    decode_address,
    encode_address,
    printable,
    read_reply,
    reply_of,
    status_of,
    write_reply,
)

TEXT = b"Subject: x\r\n\r\nhello\r\n"


def fields(sender: str, *recipients: str, **more: str) -> list[tuple[str, str]]:
    found = [
        ("Content-Type", "message/rfc822"),
        ("X-Envelope-Sender", encode_address(sender)),
        ("X-Ehlo", "client.example"),
    ]
    found += [("X-Envelope-Recipient", encode_address(address)) for address in recipients]
    return found + [(name.replace("_", "-"), value) for name, value in more.items()]


@asynccontextmanager
async def serving(
    directory: Path, **admin: Any
) -> AsyncIterator[tuple[Relay, aiohttp.ClientSession, Any]]:
    """A relay that accepts mail over HTTP, a client of it, and the receiver of what it sends."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        config = stage.config(
            admin={
                "address": "127.0.0.1:0",
                "mail": True,
                "mail_without_token": "token_file" not in admin,
                **admin,
            },
            listeners=[{"address": "127.0.0.1:0", "max_message_size": "300KiB"}],
            processes=ONE_PROCESS,
        )
        async with (
            relaying(config) as relay,
            aiohttp.ClientSession(f"http://127.0.0.1:{http_port(relay)}") as client,
        ):
            yield relay, client, sink


async def test_a_message_by_http(directory: Path) -> None:
    """204 and the reply of SMTP; the receiver gets it, with where it came from in its trace."""
    async with serving(directory) as (relay, client, sink):
        to = ["u@d.example", "v@d.example"]
        async with client.post("/mail", data=TEXT, headers=fields("s@a.example", *to)) as answer:
            assert answer.status == 204
            assert answer.headers["X-Smtp-Reply"].startswith('250; message="2.0.0 Ok: queued as ')
        await empty(relay)
        both = [("X-Envelope-Recipient", ",".join(map(encode_address, to)))]
        async with client.post("/mail", data=TEXT, headers=fields("") + both) as answer:
            assert answer.status == 204
        await until(lambda: len(sink.messages) == 2)
        await empty(relay)
        data = sink.messages[0].data
        assert b"from client.example ([127.0.0.1])" in data
        assert b" with HTTP " in data
        assert [len(message.recipients) for message in sink.messages] == [2, 2]
    accepted = logged_events(directory, "accepted")
    assert [(event["protocol"], event["client_ip"]) for event in accepted] == [("HTTP", "127.0.0.1")] * 2


@pytest.mark.parametrize(
    ("change", "status", "reply"),
    [
        ({"recipients": []}, 500, "503; message=\"5.5.1"),
        ({"recipients": ["nobody"]}, 500, "501; message=\"5.1.3"),
        ({"text": b"Subject: x\r\n\r\na\0b"}, 500, "554; message=\"5.6.0"),
        ({"text": b"Subject: x\r\n\r\n" + b"line\r\n" * 60_000}, 500, "552; message=\"5.3.4"),
        ({"fields": {"X-Envelope-Sender": "not base64!"}}, 500, "501; message=\"5.5.4"),
        ({"without": "X-Envelope-Sender"}, 500, "501; message=\"5.5.4"),
        ({"fields": {"Content-Type": "text/plain"}}, 415, ""),
        ({"path": "/elsewhere"}, 404, ""),
        ({"method": "GET"}, 405, ""),
    ],
)  # fmt: skip
async def test_what_is_refused(directory: Path, change: dict[str, Any], status: int, reply: str) -> None:
    """By the same rules as over SMTP, and nothing is left of it."""
    async with serving(directory) as (relay, client, _):
        headers = dict(fields("s@a.example", *change.get("recipients", ["u@d.example"])))
        headers |= change.get("fields", {})
        headers.pop(change.get("without", ""), None)
        method, path = change.get("method", "POST"), change.get("path", "/mail")
        text = change.get("text", TEXT)
        async with client.request(method, path, data=text, headers=headers) as answer:
            assert answer.status == status
            assert answer.headers.get("X-Smtp-Reply", "").startswith(reply)
            assert b"Traceback" not in await answer.read()
        await until(lambda: everything(relay.queue.store) == [], "the chunks to go")


async def test_a_client_that_leaves(directory: Path) -> None:
    """In the middle of a message of several chunks: nothing stays."""

    async def half() -> AsyncIterator[bytes]:
        yield TEXT + b"x\r\n" * 70_000
        raise ConnectionError("gone")

    async with serving(directory) as (relay, client, _):
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await client.post("/mail", data=half(), headers=fields("s@a.example", "u@d.example"))
        await until(lambda: everything(relay.queue.store) == [], "the chunks to go")


async def test_fields_that_no_one_can_write_down(directory: Path) -> None:
    """Bytes that are no text in a field cost a character; the next message is delivered."""
    async with serving(directory) as (relay, _, sink):
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", http_port(relay))
            writer.write(
                b"POST /mail HTTP/1.1\r\nHost: localhost\r\nContent-Type: message/rfc822\r\nX-Ehlo: \xff\xfe evil\r\n"
                b"X-Envelope-Sender: \r\nX-Envelope-Recipient: dUBkLmV4YW1wbGU=\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(TEXT) + TEXT
            )
            assert b"204" in await reader.readline()
            await reader.read()
            writer.close()
            await writer.wait_closed()
        await until(lambda: len(sink.messages) == 3)
        assert b"from ???evil" in sink.messages[0].data
        await empty(relay)


async def test_far_too_much(directory: Path) -> None:
    """An upload that goes on past twice the limit is answered, and read no further."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield TEXT
        while sent < 200 << 20:
            sent += 65_520
            yield b"line 67\r\n" * 7280

    async with serving(directory) as (relay, client, _):
        try:
            headers = fields("s@a.example", "u@d.example")
            async with client.post("/mail", data=endless(), headers=headers) as answer:
                assert answer.headers["X-Smtp-Reply"].startswith('552; message="5.3.4')
        except aiohttp.ClientError:
            pass  # it may still be writing when the connection ends
        assert sent < 100 << 20
        await until(lambda: everything(relay.queue.store) == [], "the chunks to go")


async def test_a_client_that_stalls_delays_no_other(directory: Path) -> None:
    """The relay stops within its grace; what was not answered is not kept."""
    async with serving(directory) as (relay, _, _sink):
        _, writer = await asyncio.open_connection("127.0.0.1", http_port(relay))
        writer.write(
            b"POST /mail HTTP/1.1\r\nHost: localhost\r\nContent-Type: message/rfc822\r\n"
            b"X-Envelope-Sender: \r\nX-Envelope-Recipient: dUBkLmV4YW1wbGU=\r\nContent-Length: 900\r\n\r\n"
        )
        await writer.drain()
        async with asyncio.timeout(scaled(10)):
            await relay.stop()
        writer.close()


async def test_keys_of_two_clients(directory: Path) -> None:
    """A key is its client's own: what another says under the same one is another message."""
    async with serving(directory) as (relay, _, sink):
        for ip in ("127.0.0.2", "127.0.0.3"):
            connector = aiohttp.TCPConnector(local_addr=(ip, 0))
            async with aiohttp.ClientSession(connector=connector) as client:
                headers = fields("s@a.example", "u@d.example", X_Submission_Key="2026-11-22")
                url = f"http://127.0.0.1:{http_port(relay)}/mail"
                async with client.post(url, data=TEXT, headers=headers) as answer:
                    assert answer.status == 204
        await until(lambda: len(sink.messages) == 2)


async def test_a_token(directory: Path) -> None:
    (directory / "token").write_text("secret\n")
    async with serving(directory, token_file="token") as (relay, client, _):
        for given_token, status in (("", 401), ("Bearer wrong", 401), ("Bearer secret", 204)):
            headers = [*fields("s@a.example", "u@d.example"), ("Authorization", given_token)]
            async with client.post("/mail", data=TEXT, headers=headers) as answer:
                assert answer.status == status
        await empty(relay)
    assert len(logged_events(directory, "accepted")) == 1


async def test_a_key_makes_a_repeat_harmless(directory: Path) -> None:
    async with serving(directory) as (relay, client, _):
        replies = []
        for _ in range(2):
            headers = fields("s@a.example", "u@d.example", X_Submission_Key="k")
            async with client.post("/mail", data=TEXT, headers=headers) as answer:
                replies.append(answer.headers["X-Smtp-Reply"])
        assert replies[0] == replies[1]
        await until(lambda: len(message_keys(relay)) == 0)
    assert len(logged_events(directory, "accepted")) == 1


def message_keys(relay: Relay) -> list[bytes]:
    return [key for key in everything(relay.queue.store) if key.startswith(b"message/")]


async def test_a_door_that_cannot_open(directory: Path) -> None:
    """Its address is taken, its token is not there: said, and nothing else is left open."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with staged(directory) as stage:
        config = stage.config(
            admin={"address": f"127.0.0.1:{port}", "mail": True, "mail_without_token": True}
        )
        with pytest.raises(LocalError, match=r"admin\.address"):
            await Relay(config).start()
        with pytest.raises(ConfigError, match=r"admin\.token_file"):
            Relay(stage.config(admin={"token_file": "none"}))
    server.close()


TEXTS = st.text(max_size=200).map(printable)


@given(st.sampled_from([250, 421, 450, 451, 535, 550, 552, 554]), TEXTS.filter(str.isascii))
def test_replies_come_back(code: int, text: str) -> None:
    """Whatever is in them."""
    again = read_reply(write_reply(Reply(code, f"{str(code)[0]}.1.2", text)))
    assert again is not None
    assert (again.code, again.status, again.text) == (code, f"{str(code)[0]}.1.2", text)


@given(st.text(max_size=300))
def test_any_field_is_read(value: str) -> None:
    """A reply or None, whatever a server sends."""
    reply = read_reply(value)
    assert reply is None or 200 <= reply.code < 600
    assert "\n" not in write_reply(Reply(550, "", value.replace("\r", "").replace("\n", "")))


@given(st.emails() | st.just(""))
def test_addresses_come_back(address: str) -> None:
    assert decode_address(encode_address(address)) == address


@pytest.mark.parametrize("value", ["?", "////", base64.b64encode(b"\xff").decode()])
def test_what_is_no_address(value: str) -> None:
    with pytest.raises(ValueError, match="is not base64 of an address"):
        decode_address(value)


def test_statuses() -> None:
    """Both ways, as python-slimta has them; and two that ask for another try."""
    replies: Iterable[tuple[int, int]] = [(250, 204), (451, 503), (535, 401), (550, 500)]
    assert [status_of(Reply(code, "", "")) for code, _ in replies] == [status for _, status in replies]
    assert [reply_of(status, "").code for status in (200, 204, 302, 404, 408, 429, 500, 503)] == [
        250, 250, 451, 451, 451, 451, 451, 451,
    ]  # fmt: skip
