"""Clients that submit by SMTP and by HTTP, and what they know of their messages."""

import asyncio
import base64
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation.scenario import NETWORKS, Mail

WAITS_S = 1800.0  # for one dialogue
AGAIN_S = 120.0
TRIES = 4
_REASON = re.compile(rb"^X-Smtp-Reply: (.*)", re.MULTILINE | re.IGNORECASE)


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


class _Client(ABC):
    """Submits; after a failure again, a few times.

    ``disk_fails``: a message that is answered with 4xx may have been accepted, when its bytes were written and not synced.
    """

    def __init__(self, r: random.Random, disk_fails: bool) -> None:
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

    @abstractmethod
    async def _dialogue(self, submission: Submission) -> None:
        """Submit once. Raises _Refused, _Later, OSError, EOFError."""

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send ``data``, in two parts."""
        end = self._r.randrange(len(data))
        writer.write(data[:end])
        await writer.drain()
        await asyncio.sleep(self._r.choice([0.0, 0.0, 0.1, 20.0]))
        writer.write(data[end:])

    def _answered(self, submission: Submission, code: int, reply: str) -> None:
        """There is a reply to all of it. Raises _Refused, _Later."""
        if code < 400:
            submission.unknown, submission.accepted = submission.unknown - 1, submission.accepted + 1
        elif code < 500:
            submission.unknown -= not self._disk_fails
            raise _Later(reply)
        else:
            submission.unknown -= 1
            raise _Refused(reply)


class SmtpClient(_Client):
    """Submits to ``port``."""

    port = 0

    async def _dialogue(self, submission: Submission) -> None:
        mail = submission.mail
        source = NETWORKS.get(mail.owner, "127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        try:
            lines = [f"MAIL FROM:<{mail.sender}>", *(f"RCPT TO:<{each}>" for each in mail.recipients)]
            _positive(*await _reply(reader))
            for line in ("EHLO client.example", *lines, "DATA"):
                writer.write(f"{line}\r\n".encode())
                _positive(*await _reply(reader))
            key = f"X-Submission-Key: {mail.key}\r\n".encode() if mail.key else b""
            await self._send(writer, (key + mail.data).replace(b"\r\n.", b"\r\n..") + b".\r\n")
            submission.unknown += 1
            self._answered(submission, *await _reply(reader))
        finally:
            writer.close()


class HttpClient(_Client):
    """Submits to the Unix socket at ``path``; that of another relay is another one, and empty while there is none.

    ``tokens``: by owner. The connection is a real one, which does not end with a relay that is dead: what that answers is not read.
    """

    path = ""

    def __init__(self, r: random.Random, disk_fails: bool, tokens: Mapping[str, str]) -> None:
        super().__init__(r, disk_fails)
        self._tokens = tokens

    async def _dialogue(self, submission: Submission) -> None:
        mail, path = submission.mail, self.path
        if not path:
            raise ConnectionRefusedError
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            await self._send(writer, self._request(mail))
            submission.unknown += 1
            header = await reader.readuntil(b"\r\n\r\n")
            if self.path != path:
                raise EOFError
            status, found = int(header.split(b" ", 2)[1]), _REASON.search(header)
            reply = found[1].decode() if found else f"status {status}"
            # Status codes of docs/library.md; 503 and 429 are for later, whatever reply they name.
            self._answered(
                submission, 451 if status in (429, 503) else 550 if status >= 400 else 250, reply
            )
        finally:
            writer.close()

    def _request(self, mail: Mail) -> bytes:
        lines = [
            "POST /mail HTTP/1.1",
            "Host: localhost",
            "Content-Type: message/rfc822",
            f"Authorization: Bearer {self._tokens[mail.owner]}",
            f"X-Envelope-Sender: {_encoded(mail.sender)}",
            *(f"X-Envelope-Recipient: {_encoded(each)}" for each in mail.recipients),
            *([f"Idempotency-Key: {mail.key}"] if mail.key else ()),
        ]
        body = mail.data
        if self._r.random() < 0.5:
            lines.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode() + body


def _encoded(address: str) -> str:
    return base64.b64encode(address.encode()).decode()


async def _reply(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Read a reply."""
    while True:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        if line[3:4] != b"-":
            return int(line[:3]), line.decode()


def _positive(code: int, reply: str) -> None:
    if code >= 500:
        raise _Refused(reply)
    if code >= 400:
        raise _Later(reply)
