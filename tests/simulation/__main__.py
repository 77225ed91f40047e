"""``python -m tests.simulation [--seeds 1-200] [--trace] [--mutant NAME | --mutants]``: one line for each seed; exit 1 if one fails.

A seed that fails is played again with fewer actions, as long as it fails; what is left is printed with its events.
"""

import argparse
import errno
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tests.simulation import disk, mutants, virtual
from tests.simulation.minimise import minimised
from tests.simulation.mutants import BY_NAME
from tests.simulation.scenario import DISK_ERRORS, STOPPED, Scenario, idle, make

if TYPE_CHECKING:
    from tests.simulation.play import Result

IN_MEMORY = Path("/dev/shm")  # fsync costs nothing there
FAULTS_SHOWN = 10
SEEDS_OF_A_PART = 20  # that are played in one process


DISK_FAILS = tuple(os.strerror(getattr(errno, name)) for name in DISK_ERRORS)


class Logged(logging.Handler):
    """What is in the log and should not be: damage, and exceptions.

    ``expected``: texts that may be there. STOPPED is: ``judge_held`` decides about that.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.faults: list[str] = []
        self.expected: tuple[str, ...] = ()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.CRITICAL or record.exc_info:
            text = self.format(record)
            if not any(each in text for each in (STOPPED, *self.expected)):
                self.faults.append(f"logged: {text}")


LOGGED = Logged()


def command(*arguments: str) -> str:
    """The output of this command with ``arguments``, in a process of its own."""
    line = [sys.executable, "-m", "tests.simulation", *arguments, "--at-once", "1"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def find_all(seeds: str, at_once: int) -> int:
    """Print the seed that finds each mutant; 1 if one is not found."""
    missed = 0
    with ThreadPoolExecutor(at_once) as threads:
        outputs = threads.map(
            lambda mutant: command("--mutant", mutant.name, "--seeds", seeds), mutants.MUTANTS
        )
        for mutant, output in zip(mutants.MUTANTS, outputs, strict=True):
            found = re.search(r"^seed (\d+) FAILED.*\n {4}(.*)", output, re.MULTILINE)
            text = f"seed {found[1]}: {found[2]}" if found else f"not found {output[-200:]}"
            print(f"{mutant.name}: {mutant.what}: {text}", flush=True)
            missed += found is None
    return int(missed > 0)


def play_at_once(first: int, last: int, at_once: int) -> int:
    """Play seeds in several processes, in their order; 1 if one fails."""
    began_s, failed, virtual_h, connections, failures = perf_counter(), 0, 0.0, 0, 0
    starts = range(first, last + 1, SEEDS_OF_A_PART)
    parts = [f"{at}-{min(last, at + SEEDS_OF_A_PART - 1)}" for at in starts]
    played = 0
    with ThreadPoolExecutor(at_once) as threads:
        for output in threads.map(lambda seeds: command("--seeds", seeds), parts):
            print(output, end="", flush=True)
            lines = [line for line in output.splitlines() if line.startswith("seed ")]
            played += len(lines)
            for line in lines:
                values = dict(re.findall(r"(\w+)=([\d.]+)", line))
                failed += " FAILED " in line
                virtual_h += float(values["virtual_h"])
                connections += int(values["connections"])
                failures += int(values["failed"])
    failed += last - first + 1 - played  # of a process that ended early
    print(
        f"{last - first + 1} seeds, {failed} failed: {virtual_h:.0f} virtual hours, {connections} connections, {failures} of which "
        f"failed, in {perf_counter() - began_s:.0f} s"
    )
    return 1 if failed else 0


def play_once(seed: int, scenario: Scenario, *, keep: bool = False) -> "Result":
    """The result of ``scenario``, with the random numbers of ``seed``; ``keep``: the directory stays if it fails."""
    from tests.simulation.play import Result, play  # its modules take what ``virtual`` replaces by name

    place = IN_MEMORY if IN_MEMORY.exists() else None
    LOGGED.faults.clear()
    LOGGED.expected = DISK_FAILS if scenario.disk_fails else ()
    directory = Path(tempfile.mkdtemp(prefix=f"simulation-{seed}-", dir=place))
    (directory / "removed").mkdir()
    loop = virtual.begin(seed)
    try:
        result = loop.run_until_complete(play(scenario, directory))
    except Exception:
        result = Result([traceback.format_exc()], "", 0, (), 0, 0, loop.now_s)
    finally:
        disk.begin(None)
        loop.close()
    result.faults += LOGGED.faults
    if keep and result.faults:
        print(f"    kept in {directory}")
    else:
        shutil.rmtree(directory)
    return result


def show(scenario: Scenario, result: "Result") -> None:
    """Print what was done, and what became of it."""
    for each in scenario.actions:
        text = (
            f"{each.mail.sender or '<>'} to {len(each.mail.recipients)} recipients" if each.mail else ""
        )
        print(f"    {each.at_s:12.3f} s: {each.what} {text or each.name}")
    begin_ms = virtual.BEGIN_NS // 10**6
    for record in result.records:
        told = " ".join(str(record.get(name) or "") for name in ("message", "recipient", "reply"))
        print(f"    {(record['time_ms'] - begin_ms) / 1000:12.3f} s: {record['event']} {told.strip()}")


def kinds(faults: Iterable[str]) -> set[str]:
    """``faults`` without the names and numbers in them."""
    return {re.sub(r"\S*[\d@/]\S*", "", fault) for fault in faults}


def show_shortest(seed: int, scenario: Scenario, faults: Iterable[str]) -> None:
    """Print the shortest scenario that fails with one of ``faults``, and other numbers in it."""
    wanted = kinds(faults)
    shorter = minimised(
        scenario, lambda tried: not wanted.isdisjoint(kinds(play_once(seed, tried).faults))
    )
    result = play_once(seed, shorter)
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    print(
        f"    seed {seed} of {commit or 'no commit'}, {len(shorter.actions)} of its {len(scenario.actions)} actions:"
    )
    print("".join(f"    {fault}\n" for fault in result.faults[:FAULTS_SHOWN]), end="")
    show(shorter, result)


def arguments_of() -> Any:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="one number, or FIRST-LAST")
    parser.add_argument("--trace", action="store_true", help="print actions and events of each seed")
    parser.add_argument("--mutant", choices=BY_NAME, help="with this defect, until a seed fails")
    parser.add_argument("--mutants", action="store_true", help="with each defect, until a seed fails")
    parser.add_argument("--idle", type=float, metavar="HOURS", help="a relay without mail instead")
    parser.add_argument(
        "--at-once",
        type=int,
        default=os.cpu_count(),
        help="processes that play seeds; usually one for each core",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory of a seed that fails")
    return parser.parse_args()


def main() -> int:
    """Play the seeds; returns the exit code."""
    arguments = arguments_of()
    first, _, last = arguments.seeds.partition("-")
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    if arguments.mutants:
        return find_all(arguments.seeds, arguments.at_once)
    alone = arguments.mutant or arguments.trace or arguments.keep or arguments.idle
    if arguments.at_once > 1 and last and not alone:
        return play_at_once(int(first), int(last), arguments.at_once)
    if arguments.mutant:
        mutants.install(arguments.mutant)
    virtual.install()
    disk.install()
    from tests.simulation import processes  # its modules take what ``virtual`` replaces by name

    processes.install()
    logging.disable(logging.WARNING)
    logging.basicConfig(handlers=[LOGGED], force=True)
    if arguments.idle:
        result = play_once(1, idle(arguments.idle))
        print(f"{result.turns / arguments.idle:.0f} turns of the loop an hour, {result.faults}")
        return int(bool(result.faults))
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        scenario, began_s = make(seed), perf_counter()
        result = play_once(seed, scenario, keep=arguments.keep)
        took_s = perf_counter() - began_s
        print(
            f"seed {seed} {'FAILED' if result.faults else 'passed'} {result.digest} messages={result.messages} "
            f"connections={result.connections} failed={result.failed_connections} "
            f"virtual_h={result.virtual_s / 3600:.1f} took_s={took_s:.1f} "
            + " ".join(f"{name}={count}" for name, count in sorted(result.events.items())),
            flush=True,
        )
        for fault in result.faults[:FAULTS_SHOWN]:
            print(f"    {fault}")
        failed += bool(result.faults)
        if arguments.mutant and failed:
            break
        if arguments.trace:
            show(scenario, result)
        elif result.faults:
            show_shortest(seed, scenario, result.faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
