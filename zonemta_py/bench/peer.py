"""The base of all peers: a directory, a port on loopback, start and stop; and the two that run no relay."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from zonemta_py.bench.process import free_port
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError

START_S = 30.0
STOP_S = 40.0


class Peer(ABC):
    """A relay in ``directory`` that delivers all mail to a sink. A subclass starts it."""

    name = ""
    pid = 0

    def __init__(self, directory: Path, sink_port: int) -> None:
        self.directory = directory
        self.sink_port = sink_port
        self.port = free_port()
        self.target = f"127.0.0.1:{self.port}"
        directory.chmod(0o755)  # peers drop root privileges
        self.start()
        self._wait_for_greeting()

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """The requirements of the peer that this machine lacks; empty when it can run."""

    @abstractmethod
    def start(self) -> None:
        """Write the configuration and start the relay; sets ``pid``. Raises LocalError when that fails."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the relay."""

    def fsyncs(self) -> int:
        """The number of fsyncs, which is not known for a peer."""
        return -1

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _wait_for_greeting(self) -> None:
        end_s = monotonic_s() + START_S
        try:
            while not self._greets():
                if monotonic_s() > end_s:
                    raise LocalError(f"{self.name} does not answer: {self.log_tail()}")
        except BaseException:
            self.stop()
            raise

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                return sock.recv(3) == b"220"
        except OSError:
            return False

    def log_tail(self) -> str:
        log = self.directory / "peer.log"
        return log.read_text(errors="replace")[-1000:] if log.exists() else "no log"


class ForegroundPeer(Peer):
    """A peer that is one command in the foreground, stopped by SIGTERM."""

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the command under the reaper, whose 6 MB of memory count as the peer's."""
        with (self.directory / "peer.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "zonemta_py.bench.process", *command],
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self.pid = self._process.pid

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class PeerMaker(Protocol):
    """The class of a peer."""

    def __call__(self, directory: Path, sink_port: int) -> Peer:
        """Start the peer."""

    def missing(self) -> str:
        """The requirements of the peer that this machine lacks; empty when it can run."""


def find(command: str) -> str | None:
    """The path of ``command``, looked up in the system directories as well."""
    return shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def missing_command(command: str, package: str, *, root: bool = False) -> str:
    """The reason that ``command`` of a Debian package cannot run here, if ``root`` as root; empty when it can."""
    if find(command) is None:
        return f"it is not installed (Debian: apt-get install {package})"
    return "it needs root to start" if root and os.geteuid() != 0 else ""


class NoRelay(ForegroundPeer):
    """No relay: the source submits to the sink directly, which shows the limit of the two."""

    name = "none"

    @classmethod
    def missing(cls) -> str:
        return ""

    def start(self) -> None:
        """Start a process that does nothing, whose CPU and memory fill the columns of a relay."""
        self.port = self.sink_port
        self.target = f"127.0.0.1:{self.sink_port}"
        self.run(["sleep", "86400"])


class ZoneMtaRelay(ForegroundPeer):
    """ZoneMTA, which is never run; the name exists so that the user learns why."""

    name = "zone-mta"

    @classmethod
    def missing(cls) -> str:
        """It keeps its mail in MongoDB and its counters in Redis: the databases would be measured."""
        return "it needs a MongoDB and a Redis of its own, which this benchmark does not set up"

    def start(self) -> None:
        raise LocalError(self.missing())
