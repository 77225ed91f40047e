"""Processes that a benchmark, a demonstration or a test starts, observes and ends by pid. Loopback only."""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import randbelow
from typing import NamedTuple

from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import AuditRequest
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError

START_TIMEOUT_S = 120.0  # only for a process that hangs: the end of one is noticed at once
STOP_TIMEOUT_S = 40.0
POLL_S = 0.2
PORTS = range(10_000, 32_000)
ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_end() -> Iterator[None]:
    """End the block at SIGTERM and SIGHUP by an exception, so that it stops what it started; the exit code is the shell's.

    A signal that is ignored, as under ``nohup``, stays ignored. Afterwards no child is left: the signal may have come while one
    was being started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    ended = False

    def end(number: int, _: object) -> None:
        nonlocal ended
        ended = True
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # a second one would interrupt the stopping
        sys.exit(128 + number)

    before = {each: signal.getsignal(each) for each in ENDS if signal.getsignal(each) != signal.SIG_IGN}
    for each in before:
        signal.signal(each, end)
    try:
        yield
    finally:
        for pid in reversed(process_tree(os.getpid())[1:]) if ended else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for each, handler in before.items():
            signal.signal(each, handler)


class CommandProcess:
    """``python -m MODULE ARGUMENTS…`` in a process of its own.

    Its stderr is appended to the file ``log``; ``environment`` is added to that of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        module: str = "zonemta_py",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment} if environment else None,
            )
        self.pid = self.process.pid

    def wait_ready(self) -> list[str]:
        """Return the words after ``ready`` on its stdout. Raises LocalError with the end of its log; kills it then."""
        assert self.process.stdout is not None
        line = ""
        try:
            if select.select([self.process.stdout], [], [], START_TIMEOUT_S)[0]:
                line = self.process.stdout.readline().decode()
        finally:
            if not line.startswith("ready"):
                self.kill()
        if line.startswith("ready"):
            return line.split()[1:]
        raise LocalError(f"a process did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit code. Kills it after STOP_TIMEOUT_S.

        Raises subprocess.TimeoutExpired in that case.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def output(self) -> str:
        """Wait for the end and return what it printed."""
        assert self.process.stdout is not None
        text = self.process.stdout.read().decode()
        self.process.wait()
        self.process.stdout.close()
        return text


def wait_empty(queue: Path, timeout_s: float) -> None:
    """Wait until the queue of a running relay is empty. Raises LocalError after ``timeout_s``."""
    end_s = monotonic_s() + timeout_s
    while any("recipients" in row for row in ask(queue, AuditRequest())):
        if monotonic_s() > end_s:
            raise LocalError(f"{queue}: not empty after {timeout_s:.0f} s")
        time.sleep(POLL_S)


def free_port(*addresses: str) -> int:
    """Return a TCP port that is free on all of ``addresses``. Raises LocalError when there is no such port.

    The system gives other ports to connections and to listeners of any port: one of those could take it before it is used.
    """
    end_s = monotonic_s() + START_TIMEOUT_S
    while monotonic_s() < end_s:
        sockets = []
        try:
            port = PORTS.start + randbelow(len(PORTS))
            for address in addresses or ("127.0.0.1",):
                sock = socket.socket()
                sockets.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
            return port
        except OSError:
            continue
        finally:
            for sock in sockets:
                sock.close()
    raise LocalError("no free port")


class Cpu(NamedTuple):
    """CPU time: in user mode and in the kernel, of a process and its descendants; ``main_s``: of the process alone."""

    user_s: float
    system_s: float
    main_s: float


def cpu_of(pid: int) -> Cpu:
    """CPU time of a process and its descendants, running and ended."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, system, main = 0, 0, 0
    for each in process_tree(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own_user, own_system, ended_user, ended_system = map(int, fields[11:15])
        user += own_user + ended_user
        system += own_system + ended_system
        if each == pid:
            main = own_user + own_system
    return Cpu(user / ticks, system / ticks, main / ticks)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, running and ended."""
    cpu = cpu_of(pid)
    return cpu.user_s + cpu.system_s


def process_tree(pid: int) -> list[int]:
    """The process and its running descendants."""
    found = [pid]
    for each in found:
        try:
            for task in list(Path(f"/proc/{each}/task").glob("*/children")):
                found.extend(int(child) for child in task.read_text().split())
        except OSError:
            continue  # it ended meanwhile
    return found


def rss_anon_bytes(pid: int) -> int:
    """Anonymous memory of a process and its descendants; files mapped by LevelDB do not count."""
    total = 0
    for each in process_tree(pid):
        try:
            status = Path(f"/proc/{each}/status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1]) * 1024
    return total


def written_bytes(pid: int) -> int:
    """Bytes that a process and its running descendants wrote to disk, -1 when not known."""
    total = 0
    for each in process_tree(pid):
        try:
            text = Path(f"/proc/{each}/io").read_text()
        except OSError:
            return -1
        total += int(text.partition("\nwrite_bytes: ")[2].split("\n", 1)[0])
    return total


# ---- The command ``reaper COMMAND…``: run a command and adopt its orphaned processes, so that their CPU time is counted.
#
# The processes of a relay that forks twice for each delivery would otherwise be adopted by init. Exits with the
# code of the command; SIGTERM is passed on to it.

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    process = subprocess.Popen(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            sys.exit(code)
        if pid == process.pid:
            code = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
