"""Delivery into maildirs: written to ``tmp``, synced, then renamed into ``new``.

Source: https://cr.yp.to/proto/maildir.html. The file name in ``new`` consists of message id and a hash of the
recipient, so a message that is delivered again after a crash replaces its first copy.
"""

import asyncio
import logging
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import DELIVERED, LocalMessage, lines, parts

log = logging.getLogger(__name__)

DIRECTORIES = ("tmp", "new", "cur")


class MaildirTransport:
    """``pattern`` is the path of a maildir with ``{user}``, ``{domain}``, ``{recipient}``, ``{extension}`` in it.

    ``create``: create a missing maildir. Otherwise its mail is tried again later: a disk may not be mounted.
    """

    def __init__(self, pattern: str, *, create: bool, hostname: str) -> None:
        self._pattern = pattern
        self._create = create
        self._hostname = hostname.replace("/", "_").replace(":", "_")

    def close(self) -> None:
        """See ``LocalTransport``; there is nothing to release."""

    async def deliver(self, message: LocalMessage) -> Reply:
        """See ``LocalTransport``."""
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
            for directory in DIRECTORIES:
                (maildir / directory).mkdir(parents=True, exist_ok=True, mode=0o700)

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
    directory = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
