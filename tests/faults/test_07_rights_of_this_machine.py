"""7. What needs no token on a loopback address is for programs of this machine, not for the clients of a proxy on it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.deadlines import scaled
from tests.kit.relay import http_port, relaying, staged
from zonemta_py.admin.http_server import refusal_of_local
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.relay.preflight import warnings
from zonemta_py.smtp.reply import encode_address

OPEN = ("GET /livez", "GET /readyz", "GET /metrics", "GET /api/openapi.json", "POST /mail")
FORWARDED = (
    "Forwarded: for=192.0.2.1",
    "X-Forwarded-For: 192.0.2.1",
    "x-forwarded-proto: https",
    "X-Forwarded-Host: mail.example",
    "Via: 1.1 edge",
    "X-Real-IP: 192.0.2.1",
    "X-Client-IP: 192.0.2.1",
    "True-Client-IP: 192.0.2.1",
    "CDN-Loop: cloudflare",
    "X-Appengine-User-IP: 192.0.2.1",
    "X-Amzn-Trace-Id: Root=1-2-3",
    "Forwarded-For: 192.0.2.1",
    "CF-Connecting-IP: 192.0.2.1",
    "X-Envoy-External-Address: 192.0.2.1",
    "X-Forwarded-For:",
)
OWN_HOSTS = ("127.0.0.1:8125", "localhost", "LOCALHOST:1", "[::1]:8125", "[::ffff:127.0.0.1]")
FOREIGN_HOSTS = (
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "relay.example",
    "192.0.2.1",
    "[2001:db8::1]:80",
    "0.0.0.0",
)
TEXT = b"Subject: x\r\n\r\nhello\r\n"


async def status_of(port: int | Path, *lines: str, body: bytes = b"") -> int:
    """The status of the answer to a request; ``port`` may be a Unix socket."""
    opened = (
        asyncio.open_unix_connection(port)
        if isinstance(port, Path)
        else asyncio.open_connection("127.0.0.1", port)
    )
    reader, writer = await opened
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    answer = await asyncio.wait_for(reader.read(), scaled(20))
    writer.close()
    return int(answer.split()[1])


async def status(port: int, request: str, *fields: str, host: str = "127.0.0.1") -> int:
    """The status of the answer to ``request``, which is a message if it is a POST."""
    lines = [f"{request} HTTP/1.1", f"Host: {host}", "Connection: close", *fields]
    body = b""
    if request.startswith("POST"):
        body = TEXT
        to = encode_address("u@d.example")
        lines += ["Content-Type: message/rfc822", f"X-Envelope-Sender: {encode_address('s@a.example')}"]
        lines += [f"X-Envelope-Recipient: {to}", f"Content-Length: {len(body)}"]
    return await status_of(port, *lines, body=body)


async def test_a_proxy_on_this_machine(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every exemption ends with every field that a proxy adds, and with every name that is not of this machine."""
    async with staged(directory) as stage:
        await stage.receiver("d.example")
        config = stage.config(admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True})
        async with relaying(config) as relay:
            port = http_port(relay)
            for request in OPEN:
                assert await status(port, request) in (200, 204), request
                for field in FORWARDED:
                    assert await status(port, request, field) == 401, (request, field)
                for host in OWN_HOSTS:
                    assert await status(port, request, host=host) in (200, 204), (request, host)
                for host in FOREIGN_HOSTS:
                    assert await status(port, request, host=host) in (401, 403), (request, host)
                assert await status(port, request, "Host: evil.example") in (400, 401, 403)
            assert await status(port, "GET http://evil.example/metrics") in (401, 403)
            assert await status(port, "GET http://127.0.0.1/metrics", host="evil.example") in (401, 403)
            token = (directory / "queue" / "admin.token").read_text().strip()
            bearer = f"Authorization: Bearer {token}"
            for request in OPEN:
                assert await status(port, request, *FORWARDED, bearer, host="ops.example") in (200, 204)
    assert "it has the field Forwarded" in caplog.text


async def test_requests_without_host_and_with_whole_urls(directory: Path) -> None:
    """HTTP/1.0 has no Host; a whole URL names its host, also that of a Unix socket or an IPv6 address."""
    socket = directory / "admin.sock"
    async with staged(directory) as stage:
        config = stage.config(admin={"address": ["127.0.0.1:0", f"unix:{socket}"]})
        async with relaying(config) as relay:
            for port in (http_port(relay), socket):
                for path in ("/readyz", "/metrics"):
                    assert await status_of(port, f"GET {path} HTTP/1.0") == 200, (port, path)
                for host in OWN_HOSTS:
                    line = f"GET http://{host}/readyz HTTP/1.0"
                    assert await status_of(port, line) == 200, (port, host)
                    fields = (f"Host: {host}", "Connection: close")
                    assert await status_of(port, line.replace("1.0", "1.1"), *fields) == 200, (
                        port,
                        host,
                    )
                for host in (*FOREIGN_HOSTS, "127.0.0.1@evil.example", "[::1]@evil.example"):
                    line = f"GET http://{host}/readyz HTTP/1.0"
                    assert await status_of(port, line) in (400, 401, 403), (port, host)
                    assert await status_of(port, line, "Host: localhost") in (400, 401, 403), (
                        port,
                        host,
                    )
                assert await status_of(port, "GET /readyz HTTP/1.0", "Host: evil.example") == 403
                assert await status_of(port, "GET /readyz HTTP/1.0", "Via: 1.0 edge") == 401


async def test_tokens_end_the_exemption_of_mail(directory: Path) -> None:
    """Without a word about it, mail from this machine needs a token, too; what only reads does not."""
    async with staged(directory) as stage:
        (directory / "token").write_text("secret\n")
        config = stage.config(admin={"address": "127.0.0.1:0", "mail": True, "token_file": "token"})
        async with relaying(config) as relay:
            port = http_port(relay)
            assert await status(port, "POST /mail") == 401
            assert await status(port, "POST /mail", "Authorization: Bearer secret") == 204
            assert await status(port, "GET /metrics") == 200


def test_a_connection_that_has_ended_is_of_no_machine() -> None:
    request: Any = SimpleNamespace(transport=None)
    assert refusal_of_local(request, {"localhost"}) == "the connection has ended"


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("0.0.0.0:8125", True), ("192.0.2.1:8125", True), ("[127.0.0.1:8125, '[::]:8126']", True),
        ("localhost:8125", False), ("[127.0.0.1:8125, 'unix:/run/zonemta/http.sock']", False),
    ],
)  # fmt: skip
def test_mail_without_token_is_for_addresses_of_this_machine(
    tmp_path: Path, address: str, refused: bool
) -> None:
    text = f"admin: {{address: {address}, mail: true, mail_without_token: true, tokens_file: t}}"
    if not refused:
        parse_config(text, tmp_path / "z.yaml")
        return
    with pytest.raises(ConfigError, match=r"admin\.mail_without_token: other hosts can reach"):
        parse_config(text, tmp_path / "z.yaml")


def test_mail_without_tokens_is_refused(tmp_path: Path) -> None:
    """Unless the configuration has the key for it, and then each start warns."""
    path = tmp_path / "z.yaml"
    with pytest.raises(ConfigError, match=r"admin\.mail: .*admin\.mail_without_token: true"):
        parse_config("admin: {mail: true}", path)
    open_config = parse_config("admin: {mail: true, mail_without_token: true}", path)
    assert any("admin.mail_without_token" in text for text in warnings(open_config, "relay.example"))
    for tokens in ("tokens_file: t", "token_file: t"):
        config = parse_config(f"admin: {{mail: true, {tokens}}}", path)
        assert not any("mail_without_token" in text for text in warnings(config, "relay.example"))
