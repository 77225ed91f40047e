"""A benchmark or a demonstration that is interrupted leaves no process behind."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until_blocking
from zonemta_py.bench.process import process_tree, signals_end

COMMANDS = {
    "bench": (["bench", "kept-mx", "--runs", "1", "--scale", "50"], ["zonemta_py serve", "sink.counter", "bench.setup", "bench.source"]),
    "bench-starts": (["bench", "deep", "--runs", "1"], ["sink.counter"]),
    "demo": (["demo", "--recipients", "100000"], ["zonemta_py serve"]),
}  # fmt: skip


def _commands(pids: list[int]) -> str:
    found = []
    for pid in pids:
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it ended
    return "\n".join(found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", COMMANDS)
def test_everything_is_stopped(directory: Path, name: str, number: signal.Signals) -> None:
    """The exit code is that of a signal, the temporary files are removed."""
    arguments, expected = COMMANDS[name]
    before = signal.signal(number, signal.SIG_DFL)  # the suite may run where a hang-up is ignored
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "zonemta_py", *arguments],
            env=os.environ | {"TMPDIR": str(directory)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    finally:
        signal.signal(number, before)
    started: set[int] = set()

    def are_running() -> bool:
        tree = process_tree(process.pid)
        started.update(tree)
        return all(each in _commands(tree) for each in expected)

    try:
        until_blocking(are_running, "the processes")
        process.send_signal(number)
        assert process.wait(scaled(60)) == 128 + number
        until_blocking(lambda: not _commands(sorted(started)).strip(), "the end of all of them")
        assert list(directory.iterdir()) == []
    finally:
        process.kill()
        process.wait()
        for each in started:
            if str(directory) in _commands([each]):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


def test_what_is_ignored_stays_ignored() -> None:
    """As under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_end():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
