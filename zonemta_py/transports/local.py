"""Transports without a session: maildirs, Python functions, and a transport that discards mail.

Each delivers one message to one recipient, with the message as a stream, and returns its result as a ``Reply``, as a server would:
2xx delivered, 4xx try again later, 5xx failed. ``Unanswered`` is a result that is not known.

Invariants:

- ``begin`` is awaited before the first action that cannot be undone, so that a crash afterwards is an uncertain delivery.
- A maildir has a message completely or not at all: it is written to ``tmp``, synced, and renamed into ``new``. Its name is made of
  message id and recipient, so a repetition after a crash replaces the first copy.
- A function that hangs keeps a thread of its transport, never one of the event loop.

Callers: ``delivery.local_agent``. Example: ``MaildirTransport("/home/{user}/Maildir", create=True, hostname="mx")``.

Source: https://cr.yp.to/proto/maildir.html.
"""

import asyncio
import contextvars
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

from zonemta_py.config.hooks import named_function
from zonemta_py.core.files import sync_directory, sync_name
from zonemta_py.smtp.reply import Reply

log = logging.getLogger(__name__)


# ---- The interface: one recipient at a time, the message as a stream.

DELIVERED = Reply(250, "2.0.0", "delivered")


class Unanswered(Reply):
    """The message was handed over and no answer received: the recipient may have it."""

    __slots__ = ()


class LocalMessage(NamedTuple):
    """A message for one recipient. ``message`` is the queue id of the message.

    ``header`` ends with CRLF. ``body`` iterates over the bytes after the empty line; each call starts at
    the beginning. ``size_bytes`` counts the header, the empty line and the body. The transport awaits ``begin`` before its first action that cannot be undone.
    """

    message: str
    sender: str
    recipient: str
    header: bytes
    body: Callable[[], AsyncIterator[bytes]]
    begin: Callable[[], Awaitable[None]]
    size_bytes: int


Parcel = LocalMessage  # deprecated: the old name


class LocalTransport(Protocol):
    """Delivers messages without a session."""

    async def deliver(self, message: LocalMessage) -> Reply:
        """Deliver ``message`` and return the result, ``Unanswered`` if that is not known.

        Raises only what ``body`` and ``begin`` raise.
        """

    def close(self) -> None:
        """Release connections; no delivery follows."""


def trace(message: LocalMessage) -> bytes:
    """The header fields of final delivery. Source: RFC 5321 section 4.4, RFC 9228."""
    return f"Return-Path: <{message.sender}>\r\nDelivered-To: {message.recipient}\r\n".encode()


async def lines(message: LocalMessage) -> AsyncIterator[bytes]:
    """The whole message with the fields of final delivery, in chunks, with LF as line end."""
    yield (trace(message) + message.header + b"\r\n").replace(b"\r\n", b"\n")
    held = b""
    async for chunk in message.body():
        data = held + chunk
        held = b"\r" if data.endswith(b"\r") else b""
        yield data[: len(data) - len(held)].replace(b"\r\n", b"\n")
    if held:
        yield held


def parts(address: str) -> dict[str, str]:
    """Values of the placeholders ``recipient``, ``user``, ``domain`` and ``extension`` in paths and arguments.

    ``extension`` is the text after the first ``+`` of the local part; ``user`` is the text before it.
    """
    local, _, domain = address.rpartition("@")
    user, _, extension = local.partition("+")
    return {
        "recipient": address,
        "user": user or local,
        "domain": domain,
        "extension": extension if user else "",
    }


# ---- Maildirs.


DIRECTORIES = ("tmp", "new", "cur")
SYNCED_MAX = 10_000  # maildirs that are remembered


class MaildirTransport:
    """``pattern`` is the path of a maildir with ``{user}``, ``{domain}``, ``{recipient}``, ``{extension}`` in it.

    ``create``: create a missing maildir. Otherwise its mail is tried again later: a disk may not be mounted.
    """

    def __init__(self, pattern: str, *, create: bool, hostname: str) -> None:
        self._pattern = pattern
        self._create = create
        self._synced: set[Path] = set()  # maildirs whose names are on disk
        self._hostname = hostname.replace("/", "_").replace(":", "_")

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    async def deliver(self, message: LocalMessage) -> Reply:
        names = parts(message.recipient)
        if any("/" in each or "\0" in each or each.startswith(".") for each in names.values()):
            return Reply(550, "5.1.3", "the address cannot be a directory name")
        maildir = Path(self._pattern.format(**names))
        digest = blake2b(message.recipient.encode(), digest_size=8).hexdigest()
        name = f"{message.message}.{digest}.{self._hostname}"
        try:
            await asyncio.to_thread(self._prepare, maildir)
            return await self._write(message, maildir, name)
        except OSError as exc:
            # A report quotes the reply to the sender, who must not learn paths of this machine.
            log.warning("%s: %s", maildir, exc.strerror or exc)
            return Reply(451, "4.3.0", f"the mail directory cannot be used: {exc.strerror or exc}")

    def _prepare(self, maildir: Path) -> None:
        if self._create:
            is_synced = maildir in self._synced and (maildir / "new").is_dir()
            for directory in DIRECTORIES:
                (maildir / directory).mkdir(parents=True, exist_ok=True, mode=0o700)
            if not is_synced:
                sync_name(maildir / "new")
                if len(self._synced) >= SYNCED_MAX:
                    self._synced.clear()
                self._synced.add(maildir)

    async def _write(self, message: LocalMessage, maildir: Path, name: str) -> Reply:
        temporary = maildir / "tmp" / name
        descriptor = await asyncio.to_thread(_create, temporary)
        try:
            async for chunk in lines(message):
                await asyncio.to_thread(_write_all, descriptor, chunk)
            await asyncio.to_thread(os.fsync, descriptor)
            await message.begin()
            await asyncio.to_thread(_publish, temporary, maildir / "new")
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(descriptor)
        return DELIVERED


def _create(path: Path) -> int:
    """A new file in a directory that the user of the mailbox may write: it follows no link, and takes no file of that user."""
    path.unlink(missing_ok=True)  # of an attempt that was interrupted
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _publish(temporary: Path, new: Path) -> None:
    """Rename ``temporary`` into ``new`` and sync that directory."""
    temporary.replace(new / temporary.name)
    sync_directory(new)


# ---- Python functions of the user, named ``package.module.function`` in the configuration.
#
# The function gets a ``LocalMessage`` and returns a ``Reply``, or None for delivered. A coroutine function runs
# on the event loop, any other function in a thread. When it raises, the recipient is tried again later.

THREADS = 32  # of functions that are not coroutines, in a zone


class PythonTransport:
    """Calls the function ``name`` for each recipient, for at most ``timeout_s``. Raises ConfigError."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._function = named_function(name)
        self._timeout_s = timeout_s
        # Not the threads of the loop: functions that hang keep theirs, and the queue needs those.
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Release the threads, without a wait for a function that hangs."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def deliver(self, message: LocalMessage) -> Reply:
        await message.begin()
        in_thread = None if inspect.iscoroutinefunction(self._function) else self._submit(message)
        try:
            async with asyncio.timeout(self._timeout_s):
                if in_thread is None:
                    returned = await self._function(message)
                else:
                    returned = await asyncio.wrap_future(in_thread)
        except TimeoutError:
            if in_thread is not None and in_thread.cancel():
                return Reply(451, "4.4.7", f"{self._name} was not called: its earlier calls all hang")
            text = f"{self._name} did not return within {self._timeout_s:g} s"
            return Unanswered(451, "4.4.7", text)
        except Exception as exc:
            log.exception("%s failed on %s", self._name, message.message)
            return Reply(451, "4.3.0", f"{self._name} failed: {type(exc).__name__}")
        if returned is None:
            return DELIVERED
        if not isinstance(returned, Reply):
            text = f"{self._name} returned {type(returned).__name__}, expected a Reply or None"
            return Reply(451, "4.3.5", text)
        if list(map(type, returned)) != [int, str, str]:  # it could not be stored
            return Reply(451, "4.3.5", f"{self._name} returned a malformed Reply: {tuple(returned)}")
        return returned

    def _submit(self, message: LocalMessage) -> Future[object]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=self._name)
        run = contextvars.copy_context().run
        return self._threads.submit(run, self._function, message)


# ---- Discarded mail, for tests and for zones whose mail must not leave.

DISCARDED = Reply(250, "2.0.0", "into the black hole")


class BlackholeTransport:
    """Reads every message to its end, waits ``latency_s`` and discards it."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    async def deliver(self, message: LocalMessage) -> Reply:
        async for _ in message.body():
            pass
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        await message.begin()
        return DISCARDED
