"""Delivery by HTTP POST: the message as it is, its envelope in header fields, the answer as a reply.

A field X-Smtp-Reply in the answer counts before its status. One request for each recipient. The door to
aiohttp's client.
"""

import asyncio
from collections.abc import AsyncIterator

import aiohttp

from zonemta_py.smtp.http_mapping import (
    EHLO_FIELD,
    FIELD,
    RECIPIENT_FIELD,
    SENDER_FIELD,
    UNUSABLE,
    encode_address,
    read_reply,
    reply_of,
)
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import Parcel


class HttpPost:
    """Posts to ``url``; ``token``, if any, is a bearer token. ``timeout_s`` is for one recipient."""

    def __init__(self, url: str, timeout_s: float, hostname: str, token: str = "") -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._hostname = hostname
        self._token = token
        self._session: aiohttp.ClientSession | None = None
        self._closing: asyncio.Future[None] | None = None

    async def deliver(self, parcel: Parcel) -> Reply:
        """As ``LocalTransport``."""
        await parcel.begin()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                headers={"User-Agent": "zonemta_py"},
            )
        try:
            async with self._session.post(
                self._url, data=_message(parcel), headers=self._fields(parcel), allow_redirects=False
            ) as answer:
                said = read_reply(answer.headers.get(FIELD, ""))
                if said is None or answer.status in UNUSABLE:
                    return reply_of(answer.status, answer.reason or "")
                return said
        except TimeoutError:
            return Reply(0, "4.4.2", f"{self._url} did not answer within {self._timeout_s:g} s")
        except aiohttp.ClientError as exc:
            return Reply(0, "4.4.1", f"{self._url}: {exc or type(exc).__name__}")

    def _fields(self, parcel: Parcel) -> dict[str, str]:
        fields = {
            "Content-Type": "message/rfc822",
            SENDER_FIELD: encode_address(parcel.sender),
            RECIPIENT_FIELD: encode_address(parcel.recipient),
            EHLO_FIELD: self._hostname,
        }
        if self._token:
            fields["Authorization"] = f"Bearer {self._token}"
        return fields

    def close(self) -> None:
        """No delivery follows; connections at rest end."""
        if self._session is not None:
            self._closing = asyncio.ensure_future(self._session.close())


async def _message(parcel: Parcel) -> AsyncIterator[bytes]:
    yield parcel.header + b"\r\n"
    async for chunk in parcel.body():
        yield chunk
