"""A few seeds in virtual time; ``python -m tests.simulation --seeds 1-1000`` plays more."""

import subprocess
import sys

import pytest

from tests.kit.deadlines import scaled

SEEDS = range(1, 41)
# Of Python 3.11, on any machine; another version may make its tasks in another order.
KNOWN = ["seed 1 passed 20def83a6e0739cd", "seed 2 passed 698f4f473944f589"]


def played(seeds: str) -> list[str]:
    """The lines of the seeds: number, result, digest."""
    command = [sys.executable, "-m", "tests.simulation", "--at-once", "1", "--seeds", seeds]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(400))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return [line.partition(" messages=")[0] for line in done.stdout.splitlines()]


@pytest.mark.timeout(scaled(450))
def test_seeds() -> None:
    """Every recipient has one outcome, receivers have what was said, nothing is left, whatever fails and is killed."""
    assert len(played(f"{SEEDS[0]}-{SEEDS[-1]}")) == len(SEEDS)


@pytest.mark.timeout(scaled(450))
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the digests are those of Python 3.11")
def test_the_same_seed_on_another_machine() -> None:
    """After a change that is meant to change what happens, the new ones are written here."""
    assert played("1-2") == KNOWN


IDLE_H = 48
TURNS_MAX = 1500  # an hour; what looks whether the loop is late does so four times a second, beside them


@pytest.mark.timeout(scaled(100))
def test_an_idle_relay() -> None:
    """It wakes up seldom, however long it is idle."""
    command = [sys.executable, "-m", "tests.simulation", "--idle", str(IDLE_H)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(90))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert 0 < int(done.stdout.split()[0]) < TURNS_MAX


@pytest.mark.timeout(scaled(450))
def test_the_same_seed_gives_the_same_events() -> None:
    """With the same times, in two processes."""
    assert played("6-7") == played("6-7")
