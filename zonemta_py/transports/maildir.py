"""Delivery into maildirs: written in ``tmp``, forced to disk, then linked into ``new``.

Source: https://cr.yp.to/proto/maildir.html. The name in ``new`` is made of message and recipient, so a
message that is delivered again after a crash replaces itself.
"""

import asyncio
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import DELIVERED, Parcel, lines, parts

FOLDERS = ("tmp", "new", "cur")


class Maildir:
    """``pattern`` is the path of a maildir with ``{user}``, ``{domain}``, ``{recipient}`` in it.

    ``create``: one that is not there is made; else its mail waits, in case a disk is not mounted.
    """

    def __init__(self, pattern: str, *, create: bool, hostname: str) -> None:
        self._pattern = pattern
        self._create = create
        self._hostname = hostname.replace("/", "_").replace(":", "_")

    def close(self) -> None:
        """As ``LocalTransport``: nothing rests here."""

    async def deliver(self, parcel: Parcel) -> Reply:
        """As ``LocalTransport``."""
        names = parts(parcel.recipient)
        if any("/" in each or "\0" in each or each.startswith(".") for each in names.values()):
            return Reply(550, "5.1.3", "an address that is no name of a folder")
        maildir = Path(self._pattern.format(**names))
        digest = blake2b(parcel.recipient.encode(), digest_size=8).hexdigest()
        name = f"{parcel.message}.{digest}.{self._hostname}"
        try:
            await asyncio.to_thread(self._prepare, maildir)
            return await self._write(parcel, maildir, name)
        except OSError as exc:
            return Reply(451, "4.3.0", f"{maildir}: {exc.strerror or exc}")

    def _prepare(self, maildir: Path) -> None:
        if self._create:
            for folder in FOLDERS:
                (maildir / folder).mkdir(parents=True, exist_ok=True, mode=0o700)

    async def _write(self, parcel: Parcel, maildir: Path, name: str) -> Reply:
        temporary = maildir / "tmp" / name
        descriptor = await asyncio.to_thread(
            os.open, temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        try:
            async for chunk in lines(parcel):
                await asyncio.to_thread(_write_all, descriptor, chunk)
            await asyncio.to_thread(os.fsync, descriptor)
            await parcel.begin()
            await asyncio.to_thread(_publish, temporary, maildir / "new")
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(descriptor)
        return DELIVERED


def _write_all(descriptor: int, octets: bytes) -> None:
    view = memoryview(octets)
    while view:
        view = view[os.write(descriptor, view) :]


def _publish(temporary: Path, new: Path) -> None:
    """Atomic, and on disk when it returns."""
    temporary.replace(new / temporary.name)
    folder = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
