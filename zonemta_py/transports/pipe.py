"""Delivery to a program: the message on its standard input, the result in its exit code.

Source: sysexits.h, as Postfix's pipe(8) and qmail-command(8) interpret it: 0 delivered, 75 (EX_TEMPFAIL) and
qmail's 111 try again later, other codes failed. Output that begins with an enhanced status code (``5.1.1 no
such user``) takes precedence over the exit code. The code counts when the program ends, whatever its
children do, and whether they hold its output open.
"""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from zonemta_py.config.zones import PipeSettings
from zonemta_py.smtp.reply import Reply, printable
from zonemta_py.transports.local import DELIVERED, LocalMessage, Unanswered, lines, parts

OUTPUT_MAX = 4096  # bytes kept of the output of a program
OUTPUT_AFTER_S = 1.0  # for the output to arrive that was written before the end of a program
TEMPORARY = PipeSettings().temporary
STATUS_OF_TEMPORARY = {73: "4.2.0", 78: "4.3.5", 126: "4.3.5", 127: "4.3.5"}
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

    def __init__(
        self, command: Sequence[str], timeout_s: float, temporary: Collection[int] = TEMPORARY
    ) -> None:
        """``temporary``: the exit codes after which delivery is tried again."""
        self._command = command
        self._name = Path(
            command[0]
        ).name  # replies are quoted to senders, who must not learn paths of this machine
        self._timeout_s = timeout_s
        self._temporary = temporary

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    async def deliver(self, message: LocalMessage) -> Reply:
        values = {**parts(message.recipient), "sender": message.sender, "message": message.message}
        arguments = [argument.format(**values) for argument in self._command]
        if any("\0" in value for value in values.values()) or any(
            made.startswith("-") and given.startswith("{")
            for made, given in zip(arguments, self._command, strict=True)
        ):
            return Reply(550, "5.1.3", "the address cannot be an argument of a program")
        await message.begin()
        loop = asyncio.get_running_loop()
        try:
            transport, program = await loop.subprocess_exec(
                partial(_Program, loop), *arguments, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as exc:
            return Reply(451, "4.3.5", f"{self._name} cannot be started: {exc.strerror or exc}")
        writing = asyncio.ensure_future(program.write(transport, message))
        try:
            async with asyncio.timeout(self._timeout_s):
                ends: list[asyncio.Future[Any]] = [writing, program.exited]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    writing.result()
                await asyncio.wait([program.exited])  # which the time limit must not cancel
        except TimeoutError:
            text = f"{self._name} did not end within {self._timeout_s:g} s"
            return Unanswered(451, "4.4.7", text)
        finally:
            writing.cancel()
            if transport.get_returncode() is None:
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
                await asyncio.wait([program.exited])
            await asyncio.wait([program.output_ended], timeout=OUTPUT_AFTER_S)
            program.end(transport)
        return verdict_of(
            program.exited.result(), program.output.decode("utf-8", "replace"), self._temporary
        )


class _Program(asyncio.SubprocessProtocol):
    """A running program: its exit code when it has ended, and the first OUTPUT_MAX bytes of its output.

    ``Process.wait`` of asyncio also waits for its children to close the output.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.output = b""
        self.exited: asyncio.Future[int] = loop.create_future()
        self.output_ended: asyncio.Future[None] = loop.create_future()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._reads = True

    async def write(self, transport: asyncio.SubprocessTransport, message: LocalMessage) -> None:
        """Write the message; a program may close its input before the end."""
        pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        async for chunk in lines(message):
            await self._may_write.wait()
            if not self._reads:
                return
            pipe.write(chunk)
        pipe.close()

    def end(self, transport: asyncio.SubprocessTransport) -> None:
        """Close the pipes. Data that a surviving child has not read are discarded."""
        pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        if pipe.get_write_buffer_size():
            pipe.abort()
        transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the process, for its exit code."""
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the start of the output; the remainder is read too, so that the program can end."""
        self.output = (self.output + data)[:OUTPUT_MAX]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Notice that the program reads or writes no more."""
        if fd == 0:
            self._reads = False
            self._may_write.set()
        elif not self.output_ended.done():
            self.output_ended.set_result(None)

    def process_exited(self) -> None:
        """Take the exit code."""
        if not self.exited.done():
            self.exited.set_result(self._transport.get_returncode() or 0)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()


def verdict_of(code: int, output: str, temporary: Collection[int]) -> Reply:
    """The reply for an exit code (negative: the signal that ended the program) and its output."""
    match = _STATUS.match(output)
    text = printable(match[2] if match else output)
    if code == 0:
        return DELIVERED
    if match and match[1][0] in "45":
        return Reply(550 if match[1][0] == "5" else 451, match[1], text)
    if code < 0:
        return Reply(451, "4.3.0", f"ended by signal {-code}: {text}".removesuffix(": "))
    if code in temporary:
        return Reply(451, STATUS_OF_TEMPORARY.get(code, "4.3.0"), text or f"exit code {code}")
    return Reply(550, PERMANENT.get(code, "5.3.0"), text or f"exit code {code}")
