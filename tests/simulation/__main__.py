"""``python -m tests.simulation [--seeds 1-200] [--keep]``: one line for each seed, the faults of those that fail; exit 1 then."""

import argparse
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from tests.simulation import virtual

IN_MEMORY = Path("/dev/shm")  # fsync costs nothing there


def main() -> int:
    """Play the seeds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="one number, or FIRST-LAST")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a seed that fails")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
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
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
