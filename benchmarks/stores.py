"""What each store costs: deliveries per second, CPU per delivery, and the CPU of the server behind it.

    python -m benchmarks.stores --runs 3 --json results.json

Redis and the object store run on the same machine, so their CPU competes with the relay's. The object store is
the one of the tests, written in Python: its figures say what the relay does, not what a real one takes.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit.servers import BUCKET, DURABLE, part_of, start_objects, start_redis
from zonemta_py.bench.measure import Measurement, measure
from zonemta_py.bench.process import cpu_seconds
from zonemta_py.bench.setup import SCENARIOS, Scenario
from zonemta_py.bench.zonemta import ZonemtaRelay

CHOSEN = {"kept": 1.0, "list50": 1.0, "64k": 0.5}
SCALES = {"filesystem": 0.2, "redis": 0.5, "s3": 0.1}


class Servers:
    """A Redis and an object store of this run's own."""

    def __init__(self) -> None:
        redis_port, redis = start_redis(*DURABLE)
        endpoint, objects = start_objects()
        self._pids = {"redis": redis.pid, "s3": objects.pid}
        self._redis = f"redis://127.0.0.1:{redis_port}/0"
        self._endpoint = endpoint

    def queue(self, store: str, folder: Path) -> str:
        """The settings of a queue that nobody used before."""
        if store == "redis":
            place = f", redis: {{url: '{self._redis}', prefix: '{part_of(folder)}'}}"
        elif store == "s3":
            place = (
                f", s3: {{bucket: {BUCKET}, endpoint: '{self._endpoint}', prefix: '{part_of(folder)}'}}"
            )
        else:
            place = ""
        return f", store: {store}{place}, shared: {{name: bench, take_over: false}}"

    def cpu_s(self, store: str) -> float:
        """What the server behind a store has used."""
        return cpu_seconds(self._pids[store]) if store in self._pids else 0.0


def run(servers: Servers, store: str, scenario: Scenario) -> tuple[Measurement, float]:
    """One run on a fresh queue, and the server's CPU for each delivery (ms)."""
    with tempfile.TemporaryDirectory(prefix="zonemta-stores-") as name:
        folder = Path(name)
        make: Callable[..., ZonemtaRelay] = partial(
            ZonemtaRelay, name=store, processes="0/0", queue=servers.queue(store, folder)
        )
        before_s = servers.cpu_s(store)
        found = measure(
            scenario, folder, lambda place, port: make(place, port, scenario), lambda _: None
        )
        return found, (servers.cpu_s(store) - before_s) * 1000 / found.deliveries


def main() -> None:
    """Every store in turn, so that the machine's moods hit all alike."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("stores", nargs="*", default=["leveldb", "memory", "filesystem", "redis", "s3"])
    options = parser.parse_args()
    servers, rows = Servers(), list[dict[str, Any]]()
    for scenario in (each for each in SCENARIOS if each.name in CHOSEN):
        found: dict[str, list[tuple[Measurement, float]]] = {store: [] for store in options.stores}
        for _ in range(options.runs):
            for store in options.stores:
                factor = CHOSEN[scenario.name] * SCALES.get(store, 1.0) * options.scale
                found[store].append(run(servers, store, scenario.scaled(factor)))
        base = statistics.median(one.per_second for one, _ in found[options.stores[0]])
        for store, runs in found.items():
            middle = statistics.median_low(one.per_second for one, _ in runs)
            one, server_ms = next(each for each in runs if each[0].per_second == middle)
            rows += [{"store": store, "server_cpu_ms": server, **asdict(each)} for each, server in runs]
            print(
                f"{scenario.name:8} {store:11} {one.per_second:9,.0f}/s ({one.per_second / base:5.2f})  "
                f"{one.cpu_ms:7.3f} ms CPU, server {server_ms:7.3f} ms  {one.rss_anon_mb:5.0f} MB  "
                f"p50 {one.p50_ms:6.1f} ms",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
