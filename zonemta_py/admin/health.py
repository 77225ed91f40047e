"""Whether the relay lives, and whether it is ready for mail: ``/livez`` and ``/readyz``."""

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import web

from zonemta_py.admin.http_server import HttpRoute
from zonemta_py.admin.tokens import Role, Token
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.histogram import Histogram

TICK_S = 0.25
STUCK_S = 10.0  # a loop that did not turn for so long does not live
DELAYS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

Check = Callable[[], str]  # why the relay is not ready; empty when it is


class LoopWatch:
    """Measures how late the event loop calls a timer. ``delays``: in seconds."""

    def __init__(self) -> None:
        self.delays = Histogram(DELAYS_S)
        self._due_s = self._ticked_s = monotonic_s()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._due_s = monotonic_s() + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now_s = self._ticked_s = monotonic_s()
        self.delays.add(max(0.0, now_s - self._due_s))
        self._due_s = now_s + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def stuck_s(self) -> float:
        """How long ago the loop last turned, if that is too long; else 0."""
        ago_s = monotonic_s() - self._ticked_s
        return ago_s if ago_s > STUCK_S else 0.0


def health_routes(watch: LoopWatch, checks: Sequence[Check]) -> list[HttpRoute]:
    """``/livez`` and ``/readyz``, which need no token on a loopback address."""

    async def live(request: web.Request, token: Token | None) -> web.Response:
        stuck_s = watch.stuck_s()
        if stuck_s:
            return web.json_response({"live": False, "stuck_s": round(stuck_s, 1)}, status=503)
        return web.json_response({"live": True})

    async def ready(request: web.Request, token: Token | None) -> web.Response:
        reasons = [reason for check in checks if (reason := check())]
        body = {"ready": not reasons, "reasons": reasons}
        return web.json_response(body, status=503 if reasons else 200)

    return [
        HttpRoute("GET", "/livez", live, Role.READ, is_local=True, is_quick=True),
        HttpRoute("GET", "/readyz", ready, Role.READ, is_local=True, is_quick=True),
    ]
