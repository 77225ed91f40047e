"""Delivery by HTTP POST: the unchanged message, its envelope in header fields, the response as a reply.

One request for each recipient. A field X-Smtp-Reply in the response takes precedence over its status. The
adapter of aiohttp's client.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from zonemta_py.core.text import without_secrets
from zonemta_py.smtp.reply import (
    EHLO_FIELD,
    FIELD,
    RECIPIENT_FIELD,
    SENDER_FIELD,
    UNUSABLE,
    Reply,
    encode_address,
    printable,
    read_reply,
    reply_of,
)
from zonemta_py.transports.local import LocalMessage, Unanswered

log = logging.getLogger(__name__)


class HttpTransport:
    """Posts to ``url``, with ``token`` as the bearer token unless it is empty. ``timeout_s`` is per recipient."""

    def __init__(self, url: str, timeout_s: float, hostname: str, token: str = "") -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._hostname = hostname
        self._token = token
        self._session: aiohttp.ClientSession | None = None
        self._closing: asyncio.Future[None] | None = None

    async def deliver(self, message: LocalMessage) -> Reply:
        await message.begin()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                headers={"User-Agent": "zonemta_py"},
            )
        content = _Content(message)
        try:
            async with self._session.post(
                self._url, data=content.chunks(), headers=self._fields(message), allow_redirects=False
            ) as response:
                reply = read_reply(response.headers.get(FIELD, ""))
                if reply is None or response.status in UNUSABLE:
                    return reply_of(response.status, response.reason or "")
                return reply
        # A report quotes the reply to the sender, who must not learn where this relay delivers.
        except TimeoutError:
            text = f"the HTTP server did not respond within {self._timeout_s:g} s"
            return content.failure(Reply(0, "4.4.2", text))
        except aiohttp.ClientError as exc:
            log.warning("%s", without_secrets(f"{self._url} {exc or type(exc).__name__}"))
            text = f"the HTTP server cannot be used: {_reason(exc)}"
            return content.failure(Reply(0, "4.4.1", text))

    def _fields(self, message: LocalMessage) -> dict[str, str]:
        fields = {
            "Content-Type": "message/rfc822",
            # Without it the body is chunked, and servers by WSGI (PEP 3333) read nothing of that.
            "Content-Length": str(message.size_bytes),
            SENDER_FIELD: encode_address(message.sender),
            RECIPIENT_FIELD: encode_address(message.recipient),
            EHLO_FIELD: self._hostname,
        }
        if self._token:
            fields["Authorization"] = f"Bearer {self._token}"
        return fields

    def close(self) -> None:
        """Close idle connections, in a task."""
        if self._session is not None:
            self._closing = asyncio.ensure_future(self._session.close())
            self._session = None


def _reason(exc: aiohttp.ClientError) -> str:
    """The reason of a failed request, without an address."""
    number = getattr(exc, "errno", None)  # the text of asyncio's error has the address
    return os.strerror(number) if number else type(exc).__name__


class _Content:
    """The bytes of a message, and whether the server may have all of them."""

    def __init__(self, message: LocalMessage) -> None:
        self._message = message
        self._left = message.size_bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._passed(self._message.header + b"\r\n")
        async for chunk in self._message.body():
            yield self._passed(chunk)

    def _passed(self, chunk: bytes) -> bytes:
        self._left -= len(chunk)
        return chunk

    def failure(self, reply: Reply) -> Reply:
        """``reply``, to a request without a response."""
        return reply if self._left > 0 else Unanswered(*reply)


# ---- A small text by HTTPS from known addresses.


class FetchFailed(Exception):
    """The text does not exist, or cannot be read now; the text of the exception has the reason."""


class _Known(AbstractResolver):
    """Answers with ``ips`` for every name."""

    def __init__(self, ips: Sequence[str]) -> None:
        self._ips = ips

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Answer with the known addresses; the family is that of each."""
        return [
            ResolveResult(
                hostname=host, host=ip, port=port, proto=0, flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET6 if ":" in ip else socket.AF_INET,
            )
            for ip in self._ips
        ]  # fmt: skip

    async def close(self) -> None:
        """Nothing to close."""


async def fetch_text(
    url: str, ips: Sequence[str], context: ssl.SSLContext, timeout_s: float, max_bytes: int
) -> bytes:
    """The text/plain at ``url``, whose host is at ``ips`` and has a certificate for its name. Raises FetchFailed.

    No redirect is followed, and nothing is decompressed.
    """
    connector = aiohttp.TCPConnector(resolver=_Known(ips), ssl=context, force_close=True)
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                headers={"User-Agent": "zonemta_py", "Accept-Encoding": "identity"},
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            return await _text(response, max_bytes)
    except TimeoutError as exc:
        raise FetchFailed(f"no response within {timeout_s:g} s") from exc
    except aiohttp.ClientError as exc:
        raise FetchFailed(printable(str(exc) or type(exc).__name__)) from exc


async def _text(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    if response.status != 200:
        raise FetchFailed(f"status {response.status}")
    if response.content_type != "text/plain":
        raise FetchFailed(f"the type is {printable(response.content_type)}, not text/plain")
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > max_bytes:
            raise FetchFailed(f"more than {max_bytes} bytes")
    return bytes(found)
