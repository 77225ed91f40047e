"""Measures ``zonemta pipeline report --update`` of one hour more after a year of events: complete processes, with their start.

    python -m benchmarks.pipeline.update --events 5000000 --runs 3 --json results.json

The events of the year are spread evenly over its hours, a segment for each.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.pipeline.compare import Measured, measured
from benchmarks.pipeline.data import write_hours

YEAR = 365 * 24  # hours


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=5_000_000, help="of the year")
    parser.add_argument(
        "--runs", type=int, default=3, help="hours that follow, each with an update of its own"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    per_hour = max(1, options.events // YEAR)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        events, log = directory / "events", directory / "log"
        command = [sys.executable, "-m", "zonemta_py", "pipeline", "report", str(events)]
        command += ["--output", str(directory / "report"), "--update"]
        write_hours(events, range(YEAR), per_hour)
        year = measured(command, log)
        updates = []
        for hour in range(YEAR, YEAR + options.runs):
            write_hours(events, range(hour, hour + 1), per_hour)
            updates.append(measured(command, log))
    found = {"events": per_hour * YEAR, "year": year._asdict(), "update": median(updates)._asdict()}
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def median(runs: list[Measured]) -> Measured:
    return Measured(*map(statistics.median, zip(*runs, strict=True)))


if __name__ == "__main__":
    main()
