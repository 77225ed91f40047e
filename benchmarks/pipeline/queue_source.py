"""Measures the data source ``zonemta`` beside Parquet: counts the recipients that wait at a running relay by domain and state.

    python -m benchmarks.pipeline.queue_source --recipients 1000000 --runs 3 --json results.json

The relay is a process of its own. The Parquet file has the same rows. The two are read in turns, after one reading of each that
is not counted.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import ListRequest
from zonemta_py.bench.process import CommandProcess
from zonemta_py.bench.setup import fill_queue
from zonemta_py.core.clock import monotonic_s
from zonemta_py.pipeline.send.source import ZonemtaSource

CONFIG = """
hostname: relay.example
listeners: [{address: "127.0.0.1:0"}]
zones: {default: {transport: dequeue}, blocked: {transport: dequeue}}
queue: {directory: queue, min_free_disk: 1MiB}
events: {directory: events}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipients", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "z.yaml").write_text(CONFIG)
        fill_queue(directory / "queue", options.recipients)
        command = ["serve", "-c", str(directory / "z.yaml"), "--log-level", "warning"]
        relay = CommandProcess(command, directory / "relay.log")
        try:
            relay.wait_ready()
            found = _measured(directory, options.recipients, options.runs)
            relay.stop()
        finally:
            relay.kill()
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def _measured(directory: Path, recipients: int, runs: int) -> dict[str, float]:
    """Medians in seconds, and how many times as long as Parquet the data source takes."""
    queue, file = directory / "queue", str(directory / "queue.parquet")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    try:
        spark.dataSource.register(ZonemtaSource)
        waiting = spark.read.format("zonemta").option("queue", str(queue)).load()
        waiting.write.parquet(file)
        stored = spark.read.parquet(file)
        ways: dict[str, Callable[[], int]] = {
            "data source": lambda: _counted(waiting),
            "parquet": lambda: _counted(stored),
            "listing without Spark": lambda: sum(1 for _ in ask(queue, ListRequest())),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(runs + 1):
            for name, count in ways.items():
                began_s = monotonic_s()
                assert count() == recipients
                if number:
                    took[name].append(monotonic_s() - began_s)
    finally:
        spark.stop()
    found = {name: round(median(seconds), 2) for name, seconds in took.items()}
    return {**found, "ratio": round(found["data source"] / found["parquet"], 1)}


def _counted(rows: DataFrame) -> int:
    counts = rows.groupBy("domain", "state").count().collect()
    return sum(row["count"] for row in counts)


if __name__ == "__main__":
    main()
