"""Read a small text by HTTPS from addresses that are known. The adapter of aiohttp's client for this."""

import socket
import ssl
from collections.abc import Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from zonemta_py.smtp.reply import printable


class FetchFailed(Exception):
    """There is no such text, or it cannot be read now; the text of the exception says why."""


class _Known(AbstractResolver):
    """Answers with ``ips`` for every name."""

    def __init__(self, ips: Sequence[str]) -> None:
        self._ips = ips

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See aiohttp; the family is that of each address."""
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
