"""Finds the MX hosts of domains before their first delivery, a limited number at a time.

A look-up is *quick* in its first second: most have their answer then, from a name server that answers. LOOK_UPS_MAX
are quick at a time, so the resolver is not flooded. One that takes longer waits for a name server that may not
answer at all; it gives its place to the next one, and counts among SLOW_MAX. Of the domains that wait, the newest and the
oldest are looked up in turn: mail that has just come does not wait behind thousands of dead domains, and those are reached.
Called by the egress of each zone for the first mail of a domain, and again when its answer has ended.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from zonemta_py.core.errors import AgentLost
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer

LOOK_UPS_MAX = 100  # at the same time, that are quick
QUICK_S = 1.0
SLOW_MAX = 2000  # each has a socket's place in c-ares and a task, about 5 KB

Resolve = Callable[[str], Awaitable[MxAnswer]]

log = logging.getLogger(__name__)


class LookUps:
    """``learn`` is called with each domain and its MX hosts; none if they cannot be found now."""

    def __init__(self, learn: Callable[[str, MxAnswer], None], quick_s: float = QUICK_S) -> None:
        self._learn = learn
        self._quick_s = quick_s
        self._then: dict[str, list[Callable[[], None]]] = {}
        self._waiting: deque[tuple[str, Resolve]] = deque()
        self._takes_newest = True
        self._quick: dict[asyncio.Task[None], asyncio.TimerHandle] = {}
        self._slow: set[asyncio.Task[None]] = set()
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
        while self._waiting and len(self._quick) < LOOK_UPS_MAX and not self._closed:
            domain, resolve = self._waiting.pop() if self._takes_newest else self._waiting.popleft()
            self._takes_newest = not self._takes_newest
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._look_up(domain, resolve))
            self._quick[task] = loop.call_later(self._quick_s, self._is_slow, task)
            task.add_done_callback(self._ended)

    def _is_slow(self, task: "asyncio.Task[None]") -> None:
        if len(self._slow) < SLOW_MAX:
            del self._quick[task]
            self._slow.add(task)
            self._start_more()
        else:
            loop = asyncio.get_running_loop()
            self._quick[task] = loop.call_later(self._quick_s, self._is_slow, task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        timer = self._quick.pop(task, None)
        if timer is not None:
            timer.cancel()
        self._slow.discard(task)
        self._start_more()

    async def _look_up(self, domain: str, resolve: Resolve) -> None:
        answer = NO_MX_ANSWER
        try:
            answer = await resolve(domain)
        except AgentLost as exc:
            log.warning("the MX hosts of %s were not found: %s", domain, exc)
        except Exception:
            log.exception("the MX hosts of %s were not found", domain)
        calls: list[Callable[[], None]] = [partial(self._learn, domain, answer), *self._then.pop(domain)]
        for call in calls:
            try:
                call()
            except Exception:  # a defect of one zone must not keep the mail of the others
                log.exception("a zone could not use the MX hosts of %s", domain)

    def close(self) -> None:
        """Nothing follows."""
        self._closed = True
        for task in (*self._quick, *self._slow):
            task.cancel()
