"""One connection of a sink that plays providers: limits are decided before the rules of the script."""

import asyncio
from typing import TYPE_CHECKING

from zonemta_py.core import clock
from zonemta_py.sink.script import Step
from zonemta_py.sink.sink_provider import ProviderSession, SinkProvider, SinkRefusal
from zonemta_py.sink.sink_session import SinkSession

if TYPE_CHECKING:
    from zonemta_py.sink.server import Sink


class LimitedSession(SinkSession):
    """A session with the provider that has its local address, if there is one."""

    def __init__(self, sink: "Sink") -> None:
        super().__init__(sink)
        self._provided: ProviderSession | None = None

    def eof_received(self) -> None:
        """The client has closed: its place is free before ``connection_lost`` is called, a moment later."""
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the session."""
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
