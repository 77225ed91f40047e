"""Delivery to a program: the message on its standard input, its exit code the verdict.

Source: sysexits.h, as Postfix's pipe(8) and qmail-command(8) read it: 0 delivered, 75 (EX_TEMPFAIL) and
qmail's 111 later, other codes never. Output that begins with an enhanced status code (``5.1.1 no such
user``) goes before the exit code.
"""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress

from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.transports.interface import DELIVERED, Parcel, lines, parts

OUTPUT_MAX = 4096  # of what a program says
LATER = {71: "4.3.0", 73: "4.2.0", 74: "4.3.0", 75: "4.3.0", 78: "4.3.5", 111: "4.3.0"}
NEVER = {64: "5.3.5", 65: "5.6.0", 67: "5.1.1", 68: "5.1.2", 69: "5.3.0", 70: "5.3.0", 76: "5.5.0", 77: "5.7.0", 100: "5.3.0"}  # fmt: skip
_STATUS = re.compile(r"\s*([245]\.\d{1,3}\.\d{1,3})\s+(.*)", re.DOTALL)

PRESETS = {
    "maildrop": ("maildrop", "-d", "{user}", "-f", "{sender}"),
    "dovecot": ("/usr/lib/dovecot/dovecot-lda", "-e", "-d", "{recipient}", "-f", "{sender}"),
}


class Pipe:
    """``command``: the program and its arguments, with ``{sender}``, ``{recipient}``, ``{user}``, ``{domain}``,
    ``{extension}`` and ``{message}`` in them. No shell reads them."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s

    def close(self) -> None:
        """As ``LocalTransport``: nothing rests here."""

    async def deliver(self, parcel: Parcel) -> Reply:
        """As ``LocalTransport``."""
        values = {**parts(parcel.recipient), "sender": parcel.sender, "message": parcel.message}
        if any("\0" in value for value in values.values()):
            return Reply(550, "5.1.3", "an address that is no argument of a program")
        await parcel.begin()
        try:
            process = await asyncio.create_subprocess_exec(
                *(argument.format(**values) for argument in self._command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            return Reply(451, "4.3.5", f"{self._command[0]} does not start: {exc.strerror or exc}")
        try:
            async with asyncio.timeout(self._timeout_s):
                _, said = await asyncio.gather(_feed(process, parcel), _listen(process))
                code = await process.wait()
        except TimeoutError:
            return Reply(451, "4.4.7", f"{self._command[0]} was not done after {self._timeout_s:g} s")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return verdict_of(code, said.decode("utf-8", "replace"))


async def _feed(process: asyncio.subprocess.Process, parcel: Parcel) -> None:
    """Write the message; a program that does not want all of it may say so by its exit code."""
    assert process.stdin is not None
    try:
        async for chunk in lines(parcel):
            process.stdin.write(chunk)
            await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        return


async def _listen(process: asyncio.subprocess.Process) -> bytes:
    """The beginning of what it says; the rest is read, so that it does not wait for us."""
    assert process.stdout is not None
    said = b""
    while chunk := await process.stdout.read(OUTPUT_MAX):
        said = (said + chunk)[:OUTPUT_MAX]
    return said


def verdict_of(code: int, said: str) -> Reply:
    """What an exit code (negative: the signal that ended it) and output mean."""
    match = _STATUS.match(said)
    text = printable(match[2] if match else said)
    if code == 0:
        return DELIVERED
    if match and match[1][0] in "45":
        return Reply(550 if match[1][0] == "5" else 451, match[1], text)
    if code < 0:
        return Reply(451, "4.3.0", f"ended by signal {-code}: {text}".removesuffix(": "))
    if code in LATER:
        return Reply(451, LATER[code], text or f"exit code {code}")
    return Reply(550, NEVER.get(code, "5.3.0"), text or f"exit code {code}")
