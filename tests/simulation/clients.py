"""Clients that submit by SMTP, and what they know of their messages."""

import asyncio
import random
from dataclasses import dataclass

from tests.simulation.scenario import NETWORKS, Mail

WAITS_S = 1800.0  # for one dialogue
AGAIN_S = 120.0
TRIES = 4


@dataclass
class Submission:
    """``accepted``: how often it was acknowledged. ``unknown``: how often all of it was sent, and no reply came.

    ``refusal``: the reply that refused it.
    """

    mail: Mail
    accepted: int = 0
    unknown: int = 0
    refusal: str = ""


class _Refused(Exception):
    """The relay does not take the message."""


class _Later(Exception):
    """The relay may take it later."""


class SmtpClient:
    """Submits to ``port``; after a failure again, a few times.

    ``disk_fails``: a message that is answered with 4xx may have been accepted, when its bytes were written and not synced.
    """

    def __init__(self, port: int, r: random.Random, disk_fails: bool) -> None:
        self.port = port
        self._r = r
        self._disk_fails = disk_fails

    async def submit(self, submission: Submission) -> None:
        """Submit until there is an answer."""
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(WAITS_S):
                    await self._dialogue(submission)
                return
            except _Refused as exc:
                submission.refusal = str(exc)
                return
            except (_Later, OSError, EOFError):  # TimeoutError is an OSError
                await asyncio.sleep(AGAIN_S)

    async def _dialogue(self, submission: Submission) -> None:
        mail = submission.mail
        source = NETWORKS.get(mail.owner, "127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        try:
            await _reply(reader)
            lines = [f"MAIL FROM:<{mail.sender}>", *(f"RCPT TO:<{each}>" for each in mail.recipients)]
            for line in ("EHLO client.example", *lines, "DATA"):
                writer.write(f"{line}\r\n".encode())
                await _reply(reader)
            key = f"X-Submission-Key: {mail.key}\r\n".encode() if mail.key else b""
            data = (key + mail.data).replace(b"\r\n.", b"\r\n..") + b".\r\n"
            end = self._r.randrange(len(data))
            writer.write(data[:end])
            await writer.drain()
            await asyncio.sleep(self._r.choice([0.0, 0.0, 0.1, 20.0]))
            submission.unknown += 1
            writer.write(data[end:])
            try:
                await _reply(reader)
            except _Refused:
                submission.unknown -= 1
                raise
            except _Later:
                submission.unknown -= not self._disk_fails
                raise
            submission.unknown, submission.accepted = submission.unknown - 1, submission.accepted + 1
        finally:
            writer.close()


async def _reply(reader: asyncio.StreamReader) -> None:
    """Read a positive reply."""
    while True:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        if line[3:4] != b"-":
            break
    if line[:1] == b"5":
        raise _Refused(line.decode())
    if line[:1] == b"4":
        raise _Later(line.decode())
