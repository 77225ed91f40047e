"""Delivery to a program: the message on its standard input, the result in its exit code.

Source: sysexits.h, as Postfix's pipe(8) and qmail-command(8) interpret it: 0 delivered, 75 (EX_TEMPFAIL) and
qmail's 111 try again later, other codes failed. Output that begins with an enhanced status code (``5.1.1 no
such user``) takes precedence over the exit code.
"""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress

from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.transports.interface import DELIVERED, LocalMessage, lines, parts

OUTPUT_MAX = 4096  # bytes kept of the output of a program
TEMPORARY = {71: "4.3.0", 73: "4.2.0", 74: "4.3.0", 75: "4.3.0", 78: "4.3.5", 111: "4.3.0"}
PERMANENT = {64: "5.3.5", 65: "5.6.0", 67: "5.1.1", 68: "5.1.2", 69: "5.3.0", 70: "5.3.0", 76: "5.5.0", 77: "5.7.0", 100: "5.3.0"}  # fmt: skip
_STATUS = re.compile(r"\s*([245]\.\d{1,3}\.\d{1,3})\s+(.*)", re.DOTALL)

PRESETS = {
    "maildrop": ("maildrop", "-d", "{user}", "-f", "{sender}"),
    "dovecot": ("/usr/lib/dovecot/dovecot-lda", "-e", "-d", "{recipient}", "-f", "{sender}"),
}


class PipeTransport:
    """Runs ``command``, a program and its arguments, for each recipient, without a shell.

    A value never becomes an option of the program: an address that begins with ``-`` is refused where its
    placeholder begins an argument, as Postfix does. Placeholders: ``{sender}``, ``{recipient}``, ``{user}``, ``{domain}``, ``{extension}``, ``{message}`` (the id).
    """

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s

    def close(self) -> None:
        """See ``LocalTransport``; there is nothing to release."""

    async def deliver(self, message: LocalMessage) -> Reply:
        """See ``LocalTransport``."""
        values = {**parts(message.recipient), "sender": message.sender, "message": message.message}
        arguments = [argument.format(**values) for argument in self._command]
        if any("\0" in value for value in values.values()) or any(
            made.startswith("-") and given.startswith("{")
            for made, given in zip(arguments, self._command, strict=True)
        ):
            return Reply(550, "5.1.3", "the address cannot be an argument of a program")
        await message.begin()
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            return Reply(451, "4.3.5", f"{self._command[0]} cannot be started: {exc.strerror or exc}")
        try:
            async with asyncio.timeout(self._timeout_s):
                _, output = await asyncio.gather(_write_message(process, message), _read_output(process))
                code = await process.wait()
        except TimeoutError:
            return Reply(451, "4.4.7", f"{self._command[0]} did not end within {self._timeout_s:g} s")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return verdict_of(code, output.decode("utf-8", "replace"))


async def _write_message(process: asyncio.subprocess.Process, message: LocalMessage) -> None:
    """Write the message; a program may close its input before the end."""
    assert process.stdin is not None
    try:
        async for chunk in lines(message):
            process.stdin.write(chunk)
            await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        return


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    """The first OUTPUT_MAX bytes of the output; the remainder is read too, so that the program can end."""
    assert process.stdout is not None
    output = b""
    while chunk := await process.stdout.read(OUTPUT_MAX):
        output = (output + chunk)[:OUTPUT_MAX]
    return output


def verdict_of(code: int, output: str) -> Reply:
    """The reply for an exit code (negative: the signal that ended the program) and its output."""
    match = _STATUS.match(output)
    text = printable(match[2] if match else output)
    if code == 0:
        return DELIVERED
    if match and match[1][0] in "45":
        return Reply(550 if match[1][0] == "5" else 451, match[1], text)
    if code < 0:
        return Reply(451, "4.3.0", f"ended by signal {-code}: {text}".removesuffix(": "))
    if code in TEMPORARY:
        return Reply(451, TEMPORARY[code], text or f"exit code {code}")
    return Reply(550, PERMANENT.get(code, "5.3.0"), text or f"exit code {code}")
