"""Finds the MX hosts of domains before their first delivery, a limited number at a time."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from zonemta_py.core.errors import AgentLost
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer

LOOK_UPS_MAX = 100  # at the same time

Resolve = Callable[[str], Awaitable[MxAnswer]]

log = logging.getLogger(__name__)


class LookUps:
    """``learn`` is called with each domain and its MX hosts; none if they cannot be found now."""

    def __init__(self, learn: Callable[[str, MxAnswer], None]) -> None:
        self._learn = learn
        self._then: dict[str, list[Callable[[], None]]] = {}
        self._waiting: deque[tuple[str, Resolve]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._then)

    def __contains__(self, domain: object) -> bool:
        return domain in self._then

    def add(self, domain: str, resolve: Resolve, then: Callable[[], None]) -> None:
        """Look up ``domain``, once for all that ask, and call ``then``."""
        asked = self._then.get(domain)
        if asked is not None:
            asked.append(then)
            return
        self._then[domain] = [then]
        self._waiting.append((domain, resolve))
        self._start_more()

    def _start_more(self) -> None:
        while self._waiting and len(self._tasks) < LOOK_UPS_MAX and not self._closed:
            task = asyncio.get_running_loop().create_task(self._look_up(*self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._start_more()

    async def _look_up(self, domain: str, resolve: Resolve) -> None:
        answer = NO_MX_ANSWER
        try:
            answer = await resolve(domain)
        except AgentLost as exc:
            log.warning("the MX hosts of %s were not found: %s", domain, exc)
        except Exception:
            log.exception("the MX hosts of %s were not found", domain)
        self._learn(domain, answer)
        for then in self._then.pop(domain):
            then()

    def close(self) -> None:
        """Nothing follows."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
