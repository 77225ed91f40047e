"""Scans by rspamd: each message is posted to ``/checkv2`` while it comes in. An adapter of aiohttp's client."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

import aiohttp

from zonemta_py.config.schema import ScanSettings
from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.core.text import one_line
from zonemta_py.intake.scan import ACCEPT, ScannedEnvelope, ScanVerdict, read_verdict, unavailable
from zonemta_py.queue.commit import CommitFuture

PATH = "/checkv2"
BACKLOG_MAX = 256 << 10  # bytes of a message that wait for the scanner, before its client has to
ANSWER_MAX = 1 << 20  # bytes
RECIPIENTS_MAX = 100  # named to rspamd, whose header has a limit
WARN_EVERY_S = 60.0

log = logging.getLogger(__name__)


class RspamdClient:
    """The connections of one process."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # a slow client must not take another's scan
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._warn_from_s = 0.0
        self._silent = 0  # failures since the last warning

    def begin(self, settings: ScanSettings, envelope: ScannedEnvelope) -> "RspamdScan":
        return RspamdScan(self._session, settings, envelope, self._note_failure)

    def _note_failure(self, message: str, failure: str) -> None:
        """Log at most one failure a minute: with a scanner that is down there is one for each message."""
        now_s = clock.monotonic_s()
        if now_s < self._warn_from_s:
            self._silent += 1
            return
        also = f"; {self._silent} others since the last warning" if self._silent else ""
        log.warning("%s is not scanned: %s%s", message, failure, also)
        self._warn_from_s, self._silent = now_s + WARN_EVERY_S, 0

    async def close(self) -> None:
        await self._session.close()


class RspamdScan:
    """See ``Scan``. ``on_failure`` is given the message and why there is no answer."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: ScanSettings,
        envelope: ScannedEnvelope,
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._envelope = envelope
        self._on_failure = on_failure
        self._blocks: deque[bytes] = deque()
        self._backlog = self._size = 0
        self._more = asyncio.Event()
        self._complete = False
        self._room: CommitFuture | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done = CommitFuture()
        self.verdict: ScanVerdict = ACCEPT
        self._task = asyncio.create_task(self._ask(), name=f"scan-{envelope.message}")
        self._task.add_done_callback(self._ended)

    def feed(self, data: bytes) -> CommitFuture | None:
        self._size += len(data)
        if self._size > self._settings.max_size:
            self._task.cancel()  # the message is too large to be scanned
        if self._task.done() or self._task.cancelling():
            return None
        self._blocks.append(data)
        self._backlog += len(data)
        self._more.set()
        if self._backlog > BACKLOG_MAX and self._room is None:
            self._room = CommitFuture()
            self._set_timer()  # a scanner that takes nothing must not hold up the client
        return self._room

    def finish(self) -> CommitFuture:
        self._complete = True
        self._more.set()
        if not self._task.done():
            self._set_timer()
        return self._done

    def _set_timer(self) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.timeout, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        self._task.cancel()

    def _on_timeout(self) -> None:
        self._fail(f"no answer within {self._settings.timeout:g} s")
        self._task.cancel()

    def _fail(self, reason: str) -> None:
        self._on_failure(self._envelope.message, reason)
        self.verdict = unavailable(self._settings)

    def _ended(self, task: "asyncio.Task[ScanVerdict]") -> None:
        self._stop_timer()
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            if not isinstance(failure, (aiohttp.ClientError, OSError, ValueError)):
                log.error("%s: a defect in its scan", self._envelope.message, exc_info=failure)
            self._fail(str(failure) or type(failure).__name__)
        elif not task.cancelled():
            self.verdict = task.result()
        self._blocks.clear()
        self._let_in()
        self._done.finish()

    async def _ask(self) -> ScanVerdict:
        assert self._settings.rspamd is not None
        url = self._settings.rspamd.rstrip("/") + PATH
        async with self._session.post(
            url, data=self._content(), headers=_fields(self._envelope), allow_redirects=False
        ) as response:
            if response.status != 200:
                raise ValueError(f"the answer is {response.status} {response.reason}")
            answer = b""
            async for part in response.content.iter_any():
                answer += part
                if len(answer) > ANSWER_MAX:
                    raise ValueError(f"the answer has more than {ANSWER_MAX} bytes")
        return read_verdict(from_json(answer), self._settings)

    async def _content(self) -> AsyncIterator[bytes]:
        while True:
            while self._blocks:
                block = self._blocks.popleft()
                self._backlog -= len(block)
                if self._backlog <= BACKLOG_MAX:
                    self._let_in()
                yield block
            if self._complete:
                return
            self._more.clear()
            await self._more.wait()

    def _let_in(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            if not self._complete:
                self._stop_timer()
            room.finish()


def _fields(envelope: ScannedEnvelope) -> list[tuple[str, str]]:
    """The fields of a request, which tell rspamd what the header of the message does not."""
    origin = envelope.origin
    fields = [
        ("Queue-Id", envelope.message), ("From", envelope.sender), ("Helo", origin.helo),
        ("IP", origin.client_ip), ("User", origin.user), ("MTA-Name", envelope.hostname),
        *(("Rcpt", recipient) for recipient in envelope.recipients[:RECIPIENTS_MAX]),
    ]  # fmt: skip
    return [(name, one_line(value, "?")) for name, value in fields if value]
