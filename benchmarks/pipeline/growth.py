"""Measures how the cost of ``zonemta pipeline plan`` and ``report`` grows: with the rows, and with executors of one core each.

    python -m benchmarks.pipeline.growth --runs 3 --json results.json
    python -m benchmarks.pipeline.growth --millions 1 --executors 1 2

Complete processes, with their start: ``local[2]`` with a heap of 2 GB for each size, then a standalone cluster of this
machine for the smallest size of ``--cluster``. More executors than cores show what they cost, not what they bring.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import pyspark

from benchmarks.pipeline.compare import LETTER, Measured, measured
from benchmarks.pipeline.data import write_events, write_list
from benchmarks.pipeline.update import median

MILLION = 1_000_000
HEAP = "2g"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--millions", type=int, nargs="*", default=[1, 5, 20], help="of rows, and of events"
    )
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--cluster", type=int, default=5, help="millions of rows on the cluster")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", default=["plan", "report"], choices=["plan", "report"])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # Spark starts the cluster from there
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "letter.eml").write_bytes(LETTER)
        for millions in sorted({*options.millions, *([options.cluster] if options.executors else [])}):
            write_list(directory / "list.csv", millions * MILLION)
            if "report" in options.jobs:
                write_events(directory / "events" / str(millions), millions * MILLION)
            masters = [["--master", "local[2]", "--heap", HEAP]] if millions in options.millions else []
            for count in options.executors if millions == options.cluster else ():
                of_executor = ["--conf", f"spark.executor.memory={HEAP}"]
                masters.append(["--master", f"local-cluster[{count},1,2560]", *of_executor])
            for master in masters:
                for job in options.jobs:
                    runs = [_run(directory, job, millions, master) for _ in range(options.runs)]
                    name = f"{job}, {millions} million, {master[1]}"
                    found[name] = median(runs)._asdict()
                    print(name, found[name], flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def _run(directory: Path, job: str, millions: int, master: list[str]) -> Measured:
    command = [sys.executable, "-m", "zonemta_py", "pipeline", job]
    if job == "plan":
        command += [str(directory / "list.csv"), "--message", str(directory / "letter.eml")]
        command += ["--from", "news@sender.example", "--campaign", "june"]
    else:
        command.append(str(directory / "events" / str(millions)))
    output = ["--output", str(directory / "out" / job), "--overwrite"]
    return measured([*command, *output, *master], directory / "log")


if __name__ == "__main__":
    main()
