"""The journal of a submission: what was sent to whom, so that a second run sends to nobody twice.

JSON lines. The first says what is submitted; a journal of another message, sender or list is
refused. ``sent`` is on disk before the final dot goes out, the answer follows; a ``sent`` without
an answer is uncertain. Addresses are remembered by an 8-octet digest, so a list of ten million
takes some hundreds of megabytes and not more.

    {"journal":1,"from":…,"message":SHA256}
    {"sent":["a@example.org",…]}
    {"accepted":["a@example.org",…],"reply":"250 …"}     or refused, deferred, uncertain
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError

ACCEPTED = "accepted"
REFUSED = "refused"
UNCERTAIN = "uncertain"
DEFERRED = "deferred"  # answered with 4xx: the next run tries again


def digest(address: str) -> bytes:
    """What is remembered of an address."""
    return hashlib.blake2b(address.encode(), digest_size=8).digest()


class Journal:
    """An open journal. ``done``, ``uncertain``: what earlier runs left, by digest."""

    def __init__(self, path: Path, sender: str, message_sha256: str) -> None:
        self._path = path
        self.done: set[bytes] = set()
        self.uncertain: set[bytes] = set()
        head = {"journal": 1, "from": sender, "message": message_sha256}
        try:
            self._file: BinaryIO = path.open("ab")
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fresh = self._read(head) == 0
        except BlockingIOError as exc:
            self._file.close()
            raise LocalError(f"{path}: another submission uses this journal") from exc
        except BaseException:
            self._file.close()
            raise
        self._pending: list[bytes] = []
        self._flushed: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        if fresh:
            self._write([to_json(head) + b"\n"])

    def _read(self, head: dict[str, object]) -> int:
        """Take in what earlier runs wrote; returns its size. A line cut by a crash was never acted upon."""
        whole = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    record = from_json(line)
                except ValueError as exc:
                    raise LocalError(f"{self._path}:{number}: not a journal: {exc}") from exc
                if not isinstance(record, dict):
                    raise LocalError(f"{self._path}:{number}: not a journal")
                if number == 1 and record != head:
                    raise LocalError(f"{self._path}: this journal belongs to another message or sender")
                self._recall(record)
                whole += len(line)
        with self._path.open("r+b") as file:
            file.truncate(whole)
        return whole

    def _recall(self, record: dict[str, list[str]]) -> None:
        for address in record.get("sent", ()):
            self.uncertain.add(digest(address))
        for name in (ACCEPTED, REFUSED):
            for address in record.get(name, ()):
                self.done.add(digest(address))
                self.uncertain.discard(digest(address))
        for address in record.get(DEFERRED, ()):
            self.uncertain.discard(digest(address))

    async def sent(self, addresses: Sequence[str]) -> None:
        """The final dot is about to go out; on disk when this returns."""
        await self._append({"sent": list(addresses)})

    async def answered(self, state: str, addresses: Sequence[str], reply: str) -> None:
        """What the relay said; on disk when this returns."""
        await self._append({state: list(addresses), "reply": reply})

    async def _append(self, record: dict[str, object]) -> None:
        """Write with whatever else waits, one fsync for all."""
        self._pending.append(to_json(record) + b"\n")
        if self._flushed is None:
            self._flushed = asyncio.ensure_future(self._flush())
        await asyncio.shield(self._flushed)

    async def _flush(self) -> None:
        # The write before this one must be over, and others may join until it is.
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, int)
        lines, self._pending, self._flushed = self._pending, [], None
        await loop.run_in_executor(self._thread, self._write, lines)

    def _write(self, lines: list[bytes]) -> None:
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise LocalError(f"{self._path}: {exc.strerror}") from exc

    def close(self) -> None:
        """Everything that was awaited is on disk already."""
        self._thread.shutdown()
        self._file.close()
