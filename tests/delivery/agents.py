"""Both sides of an agent: an agent that follows a script, and a request with its context."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from zonemta_py.core.codec import replace
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.smtp.mx_order import MxAnswer

DELIVERED = Attempt("dot", 250, "2.0.0", "ok", mx="mx.a.example")
DEFERRED = Attempt("rcpt", 451, "4.7.1", "later", mx="mx.a.example")
REFUSED = Attempt("rcpt", 550, "5.1.1", "no such user", mx="mx.a.example")
NO_SESSION = Attempt("connect", 0, "4.4.1", "connection timed out")
LOST = Attempt("data", 0, "4.4.2", "the peer closed the connection")
NO_DOMAIN = Attempt("connect", 0, "5.1.2", "the domain does not exist")

Answer = Callable[[DeliveryRequest], DeliveryResult | Exception]


def all_delivered(request: DeliveryRequest) -> DeliveryResult:
    return DeliveryResult([DELIVERED] * len(request.recipients))


def no_session(request: DeliveryRequest) -> DeliveryResult:
    return DeliveryResult([NO_SESSION] * len(request.recipients), NO_SESSION, tried=True)


class ScriptedAgent:
    """Answers a request with the next of ``answers``; the last one repeats.

    It opens a session, reads the body and waits for the start, as an agent does, unless the answer is
    that no session could be opened.
    """

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers or (all_delivered,))
        self.requests: list[DeliveryRequest] = []
        self.bodies: list[bytes] = []
        self.closed = False

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        result = answer(request)
        if isinstance(result, DeliveryResult) and result.failure not in (None, LOST):
            return result
        context.session_opened(1)
        self.bodies.append(await read(context))
        await context.started
        if isinstance(result, Exception):
            raise result
        return result

    async def resolve(self, domain: str) -> MxAnswer:
        return MxAnswer((f"mx.{domain}",), has_ipv4=True, has_ipv6=False)

    def close(self) -> None:
        self.closed = True


async def read(context: RequestContext) -> bytes:
    """The whole body."""
    body = context.body()
    if isinstance(body, bytes):
        return body
    return b"".join([chunk async for chunk in body])


HEADER = b"From: s@sender.example\r\nSubject: x\r\n"


async def _done() -> None:
    pass


class Context:
    """A body, and what the agent did with the context."""

    def __init__(self, body: bytes | Exception = b"body\r\n", chunk_bytes: int = 0) -> None:
        self._body = body
        self._chunk_bytes = chunk_bytes
        self.opened = 0
        self.started: Awaitable[None] = asyncio.ensure_future(_done())

    def body(self) -> bytes | AsyncIterator[bytes]:
        if isinstance(self._body, bytes) and not self._chunk_bytes:
            return self._body
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[bytes]:
        if isinstance(self._body, Exception):
            yield b"the beginning\r\n"
            raise self._body
        for start in range(0, len(self._body), self._chunk_bytes):
            yield self._body[start : start + self._chunk_bytes]

    def session_opened(self, opened: int) -> None:
        self.opened += 1


def request(*recipients: str, **changes: Any) -> DeliveryRequest:
    domain = recipients[0].rpartition("@")[2]
    whole = DeliveryRequest(
        domain, "message", domain, "s@sender.example", recipients, HEADER, len(HEADER) + 8,
        False, False, None, (10, 10),
    )  # fmt: skip
    return replace(whole, **changes)
