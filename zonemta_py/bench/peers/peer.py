"""What every peer has in common: a folder of its own, a port on loopback, a start and an end."""

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

from zonemta_py.bench.children import free_port
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError

START_S = 30.0
STOP_S = 40.0


class Peer(ABC):
    """A relay in ``folder`` that delivers everything to a sink. A subclass starts it."""

    name = ""
    pid = 0

    def __init__(self, folder: Path, sink_port: int) -> None:
        self.folder = folder
        self.sink_port = sink_port
        self.port = free_port()
        self.target = f"127.0.0.1:{self.port}"
        folder.chmod(0o755)  # peers give up root
        self.start()
        self._wait_for_greeting()

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """Empty when it can be run here, else what it needs."""

    @abstractmethod
    def start(self) -> None:
        """Write its configuration and start it; sets ``pid``."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""

    def fsyncs(self) -> int:
        """Not known from outside."""
        return -1

    def write(self, name: str, text: str) -> Path:
        """Write a file of its configuration."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _wait_for_greeting(self) -> None:
        end_s = monotonic_s() + START_S
        while monotonic_s() < end_s:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                    if sock.recv(3) == b"220":
                        return
            except OSError:
                continue
        self.stop()
        raise LocalError(f"{self.name} does not answer: {self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        log = self.folder / "peer.log"
        return log.read_text(errors="replace")[-1000:] if log.exists() else "it left no log"


class ForegroundPeer(Peer):
    """A peer that is one command in the foreground, ended by SIGTERM."""

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the command, under a process that inherits its orphans: 6 MB of memory count as the peer's."""
        with (self.folder / "peer.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "zonemta_py.bench.reaper", *command],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self.pid = self._process.pid

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class PeerMaker(Protocol):
    """A peer's class."""

    def __call__(self, folder: Path, sink_port: int) -> Peer:
        """Start one."""

    def missing(self) -> str:
        """Empty when it can be run here, else what it needs."""


def find(command: str) -> str | None:
    """Where ``command`` is, system folders included."""
    return shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def lacks(command: str, package: str, *, root: bool = False) -> str:
    """What is missing for a peer that is ``command``, of a Debian package, run as root or not."""
    if find(command) is None:
        return f"it is not installed (Debian: apt-get install {package})"
    return "it needs root to start" if root and os.geteuid() != 0 else ""
