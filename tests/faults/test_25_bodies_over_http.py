"""25. What a client sends over HTTP is an error of the client: no traceback, and no 500 of the server."""

import asyncio
import gzip
import zlib
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled
from tests.kit.relay import http_port, relaying, staged
from zonemta_py.admin.http_server import host_and_port

MAIL = {
    "Content-Type": "message/rfc822",
    "X-Envelope-Sender": "",
    "X-Envelope-Recipient": "dUBkLmV4YW1wbGU=",
}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}
PATHS = {"/login": FORM, "/logout": FORM, "/do/flush": FORM, "/api/v1/classify": JSON, "/mail": MAIL}
GOOD = b"token=x&text=y"
BODIES = {
    "not compressed": GOOD,
    "gzip": gzip.compress(GOOD),
    "a part of gzip": gzip.compress(GOOD)[:20],
    "zlib": zlib.compress(GOOD),
    "megabytes": gzip.compress(b"a" * 10_000_000)[:16_000],
    "junk": b"\x1f\x8b\x00\xff\xfe" * 9,
}
CODINGS = ("GZIP", "br", "zstd", "gzip, gzip", "compress", "x" * 5000)
TEXTS = (
    b"token=%ff%fe%ed%a0%80&a=\xff",
    b"&" * 16_000,
    b"[" * 16_000,
    b'{"a":' * 3000,
    b'{"text": ' + b"9" * 16_000 + b"}",
    b'{"text": 1e999999}',
    b'{"text": "\\ud800"}',
    b"\0" * 100,
)
CHARSETS = ("utf-7", "rot13", "zlib", "nonsense", "utf-16", "punycode", "unicode_escape", "undefined")
HOSTS = (b"\xff", b"[::1", b"a:b:c", b"localhost:99999999", b"][", b"", b"x" * 5000, b"localhost:x")


class Client:
    """Sends bytes to the HTTP listener."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token

    async def status(self, request: bytes) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), scaled(20))
        writer.close()
        return int(answer.split(b" ", 2)[1])

    async def post(self, path: str, body: bytes, **fields: str) -> int:
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        return await self.status(
            self.head(path, {**PATHS[path], **named, "Content-Length": str(len(body))}) + body
        )

    def head(self, path: str, fields: dict[str, str]) -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"Authorization: Bearer {self._token}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("count", [0, 2], ids=["0/0", "2/2"])
async def test_bodies_and_fields(directory: Path, caplog: pytest.LogCaptureFixture, count: int) -> None:
    """Compressed ones are refused before they are read, however they are; others are not what they should be."""
    async with staged(directory) as stage:
        await stage.receiver("d.example")
        admin = {"address": "127.0.0.1:0", "mail": True, "mail_without_token": True}
        processes = {"receivers": count, "senders": count}
        async with relaying(stage.config(admin=admin, processes=processes)) as relay:
            token = (directory / "queue" / "admin.token").read_text().strip()
            client = Client(http_port(relay), token)
            for path in PATHS:
                for name, body in BODIES.items():
                    for coding in ("gzip", "deflate"):
                        found = await client.post(path, body, Content_Encoding=coding)
                        assert found == 415, (path, name, coding)
                for coding in CODINGS:
                    assert await client.post(path, GOOD, Content_Encoding=coding) == 415, coding
                for text in TEXTS if path != "/mail" else ():
                    assert (await client.post(path, text)) in (303, 400, 403, 404, 413), (
                        path,
                        text[:40],
                    )
                for charset in CHARSETS:
                    kind = f"{PATHS[path]['Content-Type']}; charset={charset}"
                    found = await client.post(path, b"token=%ff\xfe&text=abc", Content_Type=kind)
                    assert found < 500, (path, charset)
            for host in HOSTS:
                for given in ("", f"Authorization: Bearer {token}\r\n"):
                    head = f"GET /login HTTP/1.1\r\nConnection: close\r\n{given}".encode()
                    assert await client.status(head + b"Host: " + host + b"\r\n\r\n") < 500, host
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.Example", ("a.example", "")), ("a:1", ("a", "1")), ("[::1]:8125", ("::1", "8125")),
        ("[::1]", ("::1", "")), ("", ("", "")), ("a:b:c", ("", "")), ("[::1", ("", "")), ("::1", ("", "")),
        ("a:999999", ("", "")),
    ],
)  # fmt: skip
def test_host_fields(text: str, parts: tuple[str, str]) -> None:
    assert host_and_port(text) == parts
