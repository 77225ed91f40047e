"""A scripted SMTP server, and sessions and transactions of the transport with it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.kit.deadlines import scaled
from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import Timeouts
from zonemta_py.transports.connect import SessionOptions, Target, open_session
from zonemta_py.transports.session import SmtpSession, Transaction, TransactionResult

FAST = Timeouts(*(Seconds(scaled(2)),) * 5)
EHLO = ["*EHLO ", "250-mx\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 1000\r\n"]

Step = str | Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def peer(
    *script: Step, context: ssl.SSLContext | None = None, implicit: bool = False
) -> AsyncIterator[tuple[int, list[str]]]:
    """A server that plays ``script`` to each connection.

    ``*TEXT`` reads one line, which must begin with TEXT; ``.`` reads to the final dot; ``STARTTLS``
    encrypts; ``!`` closes; a callable is called; anything else is sent. ``implicit``: encrypted from the
    first byte. Yields its port and what went wrong.
    """
    wrong: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        try:
            for step in script:
                if callable(step):
                    step(reader, writer)
                elif step.startswith("*"):
                    line = (await reader.readline()).decode()
                    if not line.startswith(step[1:]):
                        wrong.append(f"expected {step[1:]!r}, got {line!r}")
                elif step == ".":
                    await reader.readuntil(b"\r\n.\r\n")
                elif step == "STARTTLS":
                    assert context
                    await writer.start_tls(context)
                elif step == "!":
                    break
                else:
                    writer.write(step.encode())
            else:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(play, "127.0.0.1", 0, ssl=context if implicit else None)
    try:
        yield server.sockets[0].getsockname()[1], wrong
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
    assert wrong == []


async def open_to(port: int, **changes: object) -> SmtpSession:
    options = SessionOptions("me.example", None, "opportunistic", FAST)
    for name, value in changes.items():
        object.__setattr__(options, name, value)
    return await open_session(Target("mx.example", "127.0.0.1", port), options)


def no_wait() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def transaction(
    *recipients: str, chunks: Sequence[bytes] = (b"body\r\n",), header: bytes = b"Subject: x\r\n"
) -> Transaction:
    return Transaction(
        "a@b.example", recipients or ("c@d.example",), header, _each(chunks), 100, False, False
    )


async def _each(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def transact(port: int, mail: Transaction) -> tuple[SmtpSession, TransactionResult]:
    session = await open_to(port)
    return session, await session.transact(mail, no_wait())
