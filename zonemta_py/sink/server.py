"""A receiving SMTP server that counts sessions, messages, recipients and bytes.

It can keep messages in memory or in files, refuses, stalls or drops by the rules of ``sink.script``, and plays
providers with limits.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.core.codec import to_json
from zonemta_py.sink.limited_session import LimitedSession
from zonemta_py.sink.script import Script
from zonemta_py.sink.sink_provider import SinkProvider
from zonemta_py.sink.sink_session import SinkSession
from zonemta_py.sink.tally import Received, Tally

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
