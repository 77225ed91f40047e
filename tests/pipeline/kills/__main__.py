"""The long run: ``python -m tests.pipeline.kills --kills 10``.

Kills drivers of ``zonemta pipeline`` at random moments: of each job that many. Prints a line of JSON for each job, and exits with 1 when a
job that is run again does not end with the result of an undisturbed run.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.pipeline.kills.jobs import JOBS, kill_job
from zonemta_py.core.clock import monotonic_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each job")
    parser.add_argument("--job", action="append", choices=JOBS, help="only this one; repeatable")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    failed = 0
    for name in options.job or JOBS:
        directory = Path(tempfile.mkdtemp(prefix=f"zonemta-kills-{name}-"))
        began_s = monotonic_s()
        row: dict[str, object] = {"job": name, "seed": options.seed}
        try:
            rng = random.Random(f"{options.seed} {name}")
            found = asyncio.run(kill_job(name, directory, rng, options.kills))
        except AssertionError:
            traceback.print_exc()
            print(f"  ! left to look at: {directory}", file=sys.stderr)
            failed += 1
        else:
            shutil.rmtree(directory)
            row |= {"kills": found.kills, "writing": found.writing, "ended": found.ended}
            row["moments"] = found.moments
        print(json.dumps({**row, "seconds": round(monotonic_s() - began_s)}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
