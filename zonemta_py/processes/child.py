"""A process started here, and this end of the link to it."""

import asyncio
import logging
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.processes.link import Link

END_S = 5.0  # from the end of the link to the end of the process

log = logging.getLogger(__name__)


class Child(ABC):
    """One process. ``lost`` is called with it, once, when it is gone. A subclass handles its frames."""

    kind = "child"  # as log lines name it
    module = ""  # what the process runs
    beat_s = 5.0  # between two of its signs of life
    silent_s = 60.0  # without one, it hangs

    def __init__(
        self, place: int, decode: Callable[[bytes | memoryview], Any], lost: Callable[[Any], None]
    ) -> None:
        self.place = place
        self.since_s = clock.monotonic_s()
        self.gone = False
        self._silent = False
        self._tell_lost = lost
        self._link = Link(pack, decode, self._handle, self._lost)

    async def start(self, log_level: str, fds: Sequence[int] = ()) -> None:
        """Start the process with its end of the link, and ``fds``. Raises OSError.

        -P: a file in the folder where the relay was started must not stand in for a module.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            numbers = [str(fd) for fd in (theirs.fileno(), *fds)]
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a moment, and it is waited for in a thread
                [sys.executable, "-P", "-m", self.module, log_level, str(self.beat_s), *numbers],
                pass_fds=[theirs.fileno(), *fds],
                stdin=subprocess.DEVNULL,
            )
        self.pid = self._process.pid
        ours.setblocking(False)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=ours)
        except BaseException:
            self._process.kill()
            raise

    def send(self, frame: Any) -> None:
        """Send a frame; nothing happens when the process is gone."""
        self._link.send(frame)

    def send_now(self, frame: Any) -> None:
        """Send a frame before anything else happens: whoever connects after this meets its effect."""
        self._link.send(frame)
        self._link.flush()

    @abstractmethod
    def _handle(self, frame: Any) -> None:
        """A frame from the process."""

    @abstractmethod
    def _give_up(self) -> None:
        """The process is gone: end what was under way there."""

    def look(self) -> None:
        """Kill the process if it has shown no life for long, at this look and at the one before.

        Two looks: after a pause of this process itself, what the other said meanwhile is still unread.
        """
        silent_s = clock.monotonic_s() - self._link.heard_s
        if silent_s < self.silent_s:
            self._silent = False
        elif not self._silent:
            self._silent = True
        else:
            log.error(
                "%s %d (pid %d) has said nothing for %.0f s: killed",
                self.kind, self.place, self.pid, silent_s,
            )  # fmt: skip
            self._process.kill()

    def _lost(self) -> None:
        self.gone = True
        self._give_up()
        asyncio.get_running_loop().run_in_executor(None, self._reap)
        self._tell_lost(self)

    def _reap(self) -> None:
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            log.error("%s %d (pid %d) does not end: killed", self.kind, self.place, self.pid)
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """End the process, and do not wait: it ends when the link does."""
        self._link.close()

    async def close(self) -> None:
        """End the process."""
        self.abandon()
        await asyncio.get_running_loop().run_in_executor(None, self._reap)
