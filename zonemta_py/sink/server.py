"""A receiving SMTP server that counts sessions, messages, recipients and bytes.

It can keep messages in memory or in files, refuses, stalls or drops by the rules of ``sink.script``, and plays providers with limits.

States of a session (``SinkSession``)::

    greeting ─▶ commands ◀─▶ data, after 354 until CRLF.CRLF ─▶ closed
                   └─ stalled, while a rule delays a reply

Invariants:

- Commands are handled one at a time, so that a rule can stall each; bytes that arrive meanwhile stay in ``_buffer``.
- Only CRLF.CRLF ends a message: a bare LF never does (CVE-2023-51764).
- The ``Tally`` counts a message once, if the reply to its final dot is positive. So it shows lost and repeated mail.
- Limits of a provider are decided before the rules of the script (``LimitedSession``); its account counts each attempt over a limit,
  also a refused one.
- Data of messages that are not kept are discarded as they come: memory does not depend on their size.

Callers: ``zonemta sink``, ``zonemta demo`` and tests. Benchmarks use ``sink.counter``, which does less for each message.

Example::

    sink = Sink(keep=True)
    port = await sink.start()
    …  # deliver to 127.0.0.1, port
    sink.tally.messages, sink.messages[0].recipients

Source: RFC 5321 section 4.1; ``smtp-sink`` of Postfix.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from zonemta_py.core import clock
from zonemta_py.core.codec import to_json
from zonemta_py.sink.provider import ProviderSession, SinkProvider, SinkRefusal
from zonemta_py.sink.script import Rule, Script, Step

# ---- Received mail.


@dataclass(slots=True)
class Received:
    """A message as received. ``data`` is without dot-stuffing, and empty when messages are not kept."""

    sender: str
    recipients: list[str]
    data: bytes
    helo: str
    peer: str
    local: str
    parameters: str = ""


@dataclass(slots=True)
class Tally:
    """The counts of a sink. ``by_recipient`` counts deliveries, to find lost and repeated ones."""

    sessions: int = 0
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0  # of message data as on the wire, dot-stuffing included
    refused: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    by_recipient: Counter[str] = field(default_factory=Counter)
    by_domain: Counter[str] = field(default_factory=Counter)
    by_peer: Counter[str] = field(default_factory=Counter)

    def as_row(self) -> dict[str, object]:
        """The counts as a dictionary, for JSON. ``octets`` is the former name of ``bytes``."""
        return {
            "sessions": self.sessions,
            "messages": self.messages,
            "recipients": self.recipients,
            "unique_recipients": len(self.by_recipient),
            "repeated": sum(count - 1 for count in self.by_recipient.values()),
            "bytes": self.size_bytes,
            "octets": self.size_bytes,
            "refused": self.refused,
            "seconds": round(self.last_s - self.first_s, 3),
            "by_domain": dict(self.by_domain),
            "by_peer": dict(self.by_peer),
        }


# ---- A session.


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
                    sender=self._sender,
                    recipients=self._recipients,
                    data=body,
                    helo=self._helo,
                    peer=self.peer,
                    local=self.local,
                    parameters=self._parameters,
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


# ---- A session with a provider, whose limits precede the rules of the script.


class LimitedSession(SinkSession):
    """A session with the provider that has its local address, if there is one."""

    def __init__(self, sink: "Sink") -> None:
        super().__init__(sink)
        self._provided: ProviderSession | None = None

    def eof_received(self) -> None:
        """Free the place of a client that has closed; ``connection_lost`` is called a moment later."""
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        if self._provided is not None:
            self._provided.close()

    def _greet(self) -> None:
        """Let the provider decide; where all places are taken, after its slack: one may be about to be free."""
        provider = self._sink.provider_at(self.local)
        if provider is None:
            super()._greet()
        elif provider.limits.slack and provider.crowded(self.peer):
            self._stalled = True
            loop = asyncio.get_running_loop()
            loop.call_later(provider.limits.slack, self._enter, provider)
        else:
            self._enter(provider)

    def _enter(self, provider: SinkProvider) -> None:
        self._stalled = False
        if self._transport.is_closing():
            return
        found = provider.connect(self.peer, clock.monotonic_s())
        if isinstance(found, SinkRefusal):
            self._refuse(found)
            return
        self._provided = found
        super()._greet()
        self._advance()

    def _answer(self, step: Step, argument: str, usual: str) -> bool:
        if self._provided is None:
            return super()._answer(step, argument, usual)
        now_s = clock.monotonic_s()
        refusal = self._provided.decide(step, self._sender, argument, now_s)
        if refusal is not None:
            self._refuse(refusal)
            return False
        positive = super()._answer(step, argument, usual)
        if positive and step is Step.DOT:
            self._provided.accept(len(self._recipients), now_s)
        return positive

    def _refuse(self, refusal: SinkRefusal) -> None:
        self._sink.tally.refused += 1
        self._reply(refusal.reply)
        if refusal.closes:
            self._close()

    def _close(self) -> None:
        super()._close()
        self._leave()


# ---- The sink.

EXTENSIONS = ("PIPELINING", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES", "SIZE 0")


class Sink:
    """A listening sink.

    ``keep``: keep messages in memory. ``store``: write each into this directory, as .eml and .json.
    ``on_message`` is called with each message. ``providers``: those of the script, by name.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        keep: bool = False,
        count_recipients: bool = True,
        store: Path | None = None,
        extensions: tuple[str, ...] = EXTENSIONS,
        hostname: str = "sink.example",
        on_message: Callable[[Received], None] | None = None,
    ) -> None:
        self.script = script or Script(())
        self.providers = {limits.name: SinkProvider(limits) for limits in self.script.providers}
        self._provider_at = {
            address: provider
            for provider in self.providers.values()
            for address in provider.limits.local or [""]
        }
        self.keep = keep
        self.count_recipients = count_recipients
        self.store = store
        self.extensions = extensions
        self.hostname = hostname
        self._on_message = on_message
        self.tally = Tally()
        self.messages: list[Received] = []
        self._server: asyncio.Server | None = None
        self.connections: set[SinkSession] = set()

    async def start(self, host: str | Sequence[str] = "127.0.0.1", port: int = 0) -> int:
        """Listen, on each ``host``; returns the port of the first. Raises OSError when an address is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.session, host, port, backlog=1024)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def session(self) -> SinkSession:
        """The protocol of a new connection."""
        return LimitedSession(self) if self.providers else SinkSession(self)

    async def close(self) -> None:
        """Stop listening and abort every connection."""
        if self._server is not None:
            self._server.close()
        for session in list(self.connections):
            session.abort()

    def provider_at(self, local: str) -> SinkProvider | None:
        """The provider whose host has the address ``local``."""
        return self._provider_at.get(local) or self._provider_at.get("")

    def as_row(self) -> dict[str, object]:
        """The counts as a dictionary, for JSON; with those of the providers, if the script has any."""
        row = self.tally.as_row()
        if self.providers:
            row["providers"] = {name: each.as_row() for name, each in self.providers.items()}
        return row

    def received(self, message: Received) -> None:
        """Count a complete message, and keep or write it."""
        tally = self.tally
        now_s = clock.monotonic_s()
        tally.first_s = tally.first_s or now_s
        tally.last_s = now_s
        tally.messages += 1
        tally.recipients += len(message.recipients)
        tally.by_peer[message.peer] += 1
        if self.count_recipients:
            tally.by_recipient.update(message.recipients)
            tally.by_domain.update(r.rpartition("@")[2] for r in message.recipients)
        if self.keep:
            self.messages.append(message)
        if self.store is not None:
            self._write(message, self.store)
        if self._on_message is not None:
            self._on_message(message)

    def _write(self, message: Received, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{self.tally.messages:06d}"
        (directory / f"{name}.eml").write_bytes(message.data)
        envelope = {
            "sender": message.sender,
            "recipients": message.recipients,
            "helo": message.helo,
            "peer": message.peer,
        }
        (directory / f"{name}.json").write_bytes(to_json(envelope) + b"\n")
