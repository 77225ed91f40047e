"""One connection of a sink. Only CRLF.CRLF ends a message."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.tally import Received

if TYPE_CHECKING:
    from zonemta_py.sink.server import Sink


class SinkSession(asyncio.Protocol):
    """One connection. Commands are handled one at a time, so that a rule can stall each."""

    def __init__(self, sink: "Sink") -> None:
        self._sink = sink
        self._buffer = bytearray()
        self._searched = 0
        self._in_data = False
        self._has_sender = False
        self._data_bytes = 0
        self._stalled = False
        self._out: list[bytes] = []
        self._commands: deque[str] = deque()
        self._sender = self._helo = self._parameters = ""
        self._recipients: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        self._transport = cast(asyncio.Transport, transport)
        self.peer = str(transport.get_extra_info("peername")[0])
        self.local = str(transport.get_extra_info("sockname")[0])
        self._sink.tally.sessions += 1
        self._number = self._sink.tally.sessions
        self._sink.connections.add(self)
        self._greet()

    def _greet(self) -> None:
        self._answer(Step.CONNECT, "", f"220 {self._sink.hostname} ESMTP")
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the session."""
        self._sink.connections.discard(self)

    def abort(self) -> None:
        """Close the connection without a reply."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Process commands or message data, unless a reply is stalled."""
        self._buffer += data
        if not self._stalled:
            self._advance()

    def _advance(self) -> None:
        while not self._stalled and not self._transport.is_closing():
            if self._in_data:
                if not self._take_data():
                    break
            else:
                at = self._buffer.find(b"\n")
                if at < 0:
                    break
                line = bytes(self._buffer[:at]).rstrip(b"\r")
                del self._buffer[: at + 1]
                self._command(line.decode("utf-8", "replace"))
        self._flush()

    def _take_data(self) -> bool:
        """Search for the final dot; True when the message is complete."""
        buffer = self._buffer
        if buffer.startswith(b".\r\n") and not self._data_bytes:
            end, after = 0, 3
        else:
            at = buffer.find(b"\r\n.\r\n", max(0, self._searched - 4))
            if at < 0:
                self._searched = len(buffer)
                self._discard_data()
                return False
            end, after = at + 2, at + 5
        body = bytes(buffer[:end])
        del buffer[:after]
        self._data_bytes += end
        self._searched = 0
        self._in_data = False
        self._finish(body)
        return True

    def _discard_data(self) -> None:
        """Discard the data of a message that is not kept, but for the bytes that may begin its end."""
        if not self._sink.keep and self._sink.store is None and len(self._buffer) > 65_536:
            drop = len(self._buffer) - 4
            self._data_bytes += drop
            del self._buffer[:drop]
            self._searched = 4

    def _finish(self, body: bytes) -> None:
        sink = self._sink
        if self._answer(Step.DOT, "", "250 2.0.0 Ok"):
            if sink.keep or sink.store is not None:
                body = b"\r\n" + body
                body = body.replace(b"\r\n.", b"\r\n")[2:]
            else:
                body = b""
            sink.tally.size_bytes += self._data_bytes
            sink.received(
                Received(
                    self._sender,
                    self._recipients,
                    body,
                    self._helo,
                    self.peer,
                    self.local,
                    self._parameters,
                )
            )
        self._data_bytes = 0
        self._recipients = []
        self._sender = ""
        self._has_sender = False

    def _command(self, line: str) -> None:
        verb, _, argument = line.partition(" ")
        verb = verb.upper()
        if verb == "EHLO":
            self._helo = argument
            lines = [self._sink.hostname, *self._sink.extensions]
            text = "".join(f"250-{item}\r\n" for item in lines[:-1]) + f"250 {lines[-1]}"
            self._answer(Step.EHLO, argument, text)
        elif verb == "HELO":
            self._helo = argument
            self._answer(Step.EHLO, argument, f"250 {self._sink.hostname}")
        elif verb == "MAIL":
            self._sender, self._parameters = _path(argument)
            self._recipients = []
            self._has_sender = self._answer(Step.MAIL, self._sender, "250 2.1.0 Ok")
        elif verb == "RCPT":
            address, _ = _path(argument)
            if not self._has_sender:
                self._reply("503 5.5.1 MAIL first")
            elif self._answer(Step.RCPT, address, "250 2.1.5 Ok"):
                self._recipients.append(address)
        elif verb == "DATA":
            if not self._recipients:
                self._reply("554 5.5.1 No valid recipients")
            elif self._answer(Step.DATA, "", "354 Go on"):
                self._in_data = True
        elif verb == "QUIT":
            self._reply("221 2.0.0 Bye")
            self._close()
        elif verb in ("RSET", "NOOP"):
            if verb == "RSET":
                self._recipients, self._has_sender = [], False
            self._reply("250 2.0.0 Ok")
        else:
            self._reply("502 5.5.2 Not implemented")

    def _answer(self, step: Step, argument: str, usual: str) -> bool:
        """Reply by the script, else with ``usual``; True when the reply is positive."""
        rule = self._sink.script.match(
            step, argument, self._sender, self._recipients, self.local, self._number
        )
        if rule is None:
            self._reply(usual)
            return True
        return self._apply(rule, usual)

    def _apply(self, rule: Rule, usual: str) -> bool:
        reply = rule.reply or usual
        if rule.drop:
            self._flush()
            self._transport.abort()
            return False
        if rule.stall_s:
            self._stalled = True
            self._flush()
            asyncio.get_running_loop().call_later(rule.stall_s, self._resume, reply)
        else:
            self._reply(reply)
        positive = reply[0] in "23"
        if not positive:
            self._sink.tally.refused += 1
        if reply.startswith("421"):
            self._close()
        return positive

    def _close(self) -> None:
        self._flush()
        self._transport.close()

    def _resume(self, reply: str) -> None:
        self._stalled = False
        if not self._transport.is_closing():
            self._reply(reply)
            self._advance()

    def _reply(self, text: str) -> None:
        self._out.append(text.encode("utf-8", "surrogateescape") + b"\r\n")

    def _flush(self) -> None:
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()


def _path(argument: str) -> tuple[str, str]:
    """The address between the brackets, or without any, and the parameters after it."""
    start, end = argument.find("<"), argument.rfind(">")
    if start < 0:
        address, _, parameters = argument.partition(":")[2].strip().partition(" ")
        return address, parameters.strip()
    return argument[start + 1 : end], argument[end + 1 :].strip()
