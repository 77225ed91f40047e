"""The journal of a submission: the recipients already sent to, so that a second run skips them.

JSON lines. The first line identifies the submission; a journal of another message or sender is
refused. A ``sent`` line is on disk before the final dot is sent, and the reply is appended after it;
``sent`` without a reply is uncertain. Addresses are kept in memory as 8-byte digests: a list of ten
million takes a few hundred megabytes.

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
from functools import partial
from pathlib import Path
from typing import BinaryIO

from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.smtp.address import folded

ACCEPTED = "accepted"
REFUSED = "refused"
UNCERTAIN = "uncertain"
DEFERRED = "deferred"  # 4xx: the next run tries again


def digest(address: str, *, case_sensitive: bool = False) -> bytes:
    """The 8 bytes that identify ``address``, as ``pipeline plan`` compares addresses."""
    form = address if case_sensitive else folded(address)
    return hashlib.blake2b(form.encode(), digest_size=8).digest()


class Journal:
    """An open journal. ``done`` and ``uncertain`` hold the digests that earlier runs left.

    The constructor raises LocalError for a file that is not a journal, belongs to another submission,
    or is in use.
    """

    def __init__(
        self, path: Path, sender: str, message_sha256: str, *, case_sensitive: bool = False
    ) -> None:
        self._path = path
        self._digest = partial(digest, case_sensitive=case_sensitive)
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
        """Read what earlier runs wrote; returns its size in bytes.

        A last line that a crash truncated is removed: nothing was sent before it was complete.
        """
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
                self._replay(record)
                whole += len(line)
        with self._path.open("r+b") as file:
            file.truncate(whole)
        return whole

    def _replay(self, record: dict[str, list[str]]) -> None:
        for address in record.get("sent", ()):
            self.uncertain.add(self._digest(address))
        for name in (ACCEPTED, REFUSED):
            for address in record.get(name, ()):
                self.done.add(self._digest(address))
                self.uncertain.discard(self._digest(address))
        for address in record.get(DEFERRED, ()):
            self.uncertain.discard(self._digest(address))

    async def sent(self, addresses: Sequence[str]) -> None:
        """Record that the final dot is about to be sent; on disk on return. Raises LocalError."""
        await self._append({"sent": list(addresses)})

    async def answered(self, state: str, addresses: Sequence[str], reply: str) -> None:
        """Record the relay's reply; on disk on return. Raises LocalError."""
        await self._append({state: list(addresses), "reply": reply})

    async def _append(self, record: dict[str, object]) -> None:
        """Append ``record``; concurrent callers share one fsync."""
        self._pending.append(to_json(record) + b"\n")
        if self._flushed is None:
            self._flushed = asyncio.ensure_future(self._flush())
        await asyncio.shield(self._flushed)

    async def _flush(self) -> None:
        # Waits for the previous write; until then further records join this one.
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
        """Close the file; every awaited record is on disk already."""
        self._thread.shutdown()
        self._file.close()
