"""``python -m tests.simulation [--seeds 1-200] [--mutant NAME | --mutants] [--keep]``: one line for each seed, the faults of those that fail; exit 1 then."""

import argparse
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from tests.simulation import mutants, virtual
from tests.simulation.mutants import BY_NAME

IN_MEMORY = Path("/dev/shm")  # fsync costs nothing there


def find_all(seeds: str) -> int:
    """Print the seed that finds each mutant; 1 if one is not found."""
    missed = 0
    for mutant in mutants.MUTANTS:
        command = [sys.executable, "-m", "tests.simulation", "--mutant", mutant.name, "--seeds", seeds]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r"^seed (\d+) FAILED.*\n {4}(.*)", done.stdout, re.MULTILINE)
        text = f"seed {found[1]}: {found[2]}" if found else "not found " + done.stderr[-200:]
        print(f"{mutant.name}: {mutant.what}: {text}", flush=True)
        missed += found is None
    return int(missed > 0)


def main() -> int:
    """Play the seeds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="one number, or FIRST-LAST")
    parser.add_argument("--mutant", choices=BY_NAME, help="with this defect, until a seed fails")
    parser.add_argument("--mutants", action="store_true", help="with each defect, until a seed fails")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a seed that fails")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    if arguments.mutants:
        return find_all(arguments.seeds)
    if arguments.mutant:
        mutants.install(arguments.mutant)
    virtual.install()
    from tests.simulation.play import (
        play,  # modules take clock and threads by name when they are imported
    )
    from tests.simulation.scenario import make

    logging.disable(logging.CRITICAL)
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        directory, began_s = (
            Path(
                tempfile.mkdtemp(
                    prefix=f"simulation-{seed}-", dir=IN_MEMORY if IN_MEMORY.exists() else None
                )
            ),
            perf_counter(),
        )
        loop = virtual.begin(seed)
        result = loop.run_until_complete(play(make(seed), directory))
        loop.close()
        took_s = perf_counter() - began_s
        print(
            f"seed {seed} {'FAILED' if result.faults else 'passed'} {result.digest} messages={result.messages} "
            f"connections={result.connections} failed={result.failed_connections} "
            f"virtual_h={result.virtual_s / 3600:.1f} took_s={took_s:.1f} "
            + " ".join(f"{name}={count}" for name, count in sorted(result.events.items())),
            flush=True,
        )
        for fault in result.faults[:10]:
            print(f"    {fault}")
        failed += bool(result.faults)
        if not (arguments.keep and result.faults):
            shutil.rmtree(directory)
        if arguments.mutant and failed:
            break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
