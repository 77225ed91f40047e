"""A plan submitted from a standalone cluster to two relays, while an executor and a relay are killed."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.deadlines import eventually, until
from tests.kit.relay import Stage, ledger, logged_events, staged
from tests.pipeline.campaigns import PERSONAL, plan, write_list
from tests.pipeline.cluster import Cluster, cluster
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.sink.server import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 5_000
DONE_S = 180.0
SMALL = ("spark.executor.memory=512m", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # fmt: skip
HASTY = (
    "spark.speculation=true", "spark.speculation.interval=50ms", "spark.speculation.quantile=0.1",
    "spark.speculation.multiplier=1.01", "spark.speculation.minTaskRuntime=0ms",
)  # fmt: skip


class Node:
    """A relay in a process of its own; it keeps its port after a restart."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.directory = stage.directory / name
        self.directory.mkdir()
        port = free_port()
        self.target = f"127.0.0.1:{port}"
        stage.config(listeners=[{"address": self.target}])
        self.config = self.directory / "zonemta.yaml"
        (stage.directory / "zonemta.yaml").rename(self.config)
        self.start()

    def start(self) -> None:
        command = ["serve", "-c", str(self.config), "--log-level", "warning"]
        self.process = CommandProcess(command, self.directory / "log")
        self.process.wait_ready()

    def kill(self) -> None:
        self.process.kill()


class Sending:
    """``zonemta pipeline send`` on the cluster, in a process of its own."""

    def __init__(
        self, directory: Path, spark_cluster: Cluster, plan_path: Path, *, targets: list[str]
    ) -> None:
        relays = [part for target in targets for part in ("--relay", target)]
        settings = [part for each in (*SMALL, *HASTY) for part in ("--conf", each)]
        self.child = CommandProcess(
            ["pipeline", "send", str(plan_path), *relays, "--connections", "1", "--master", spark_cluster.address, "--heap", "512m", *settings, "--json"],
            directory / "send.log",
            environment={"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until ``holds()``; fail when the job ends before."""
        process = self.child.process
        await until(lambda: holds() or process.poll() is not None, what, DONE_S)
        assert process.poll() is None, (
            f"the job ended before {what}: {self.child.log.read_text()[-3000:]}"
        )

    async def sums(self) -> dict[str, Any]:
        """Wait for the end of the job; returns the counts that it printed."""
        process = self.child.process
        await until(lambda: process.poll() is not None, "the end of the job", DONE_S)
        text = await asyncio.to_thread(self.child.output)
        assert process.returncode == 0, f"{text} {self.child.log.read_text()[-3000:]}"
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found


async def planned(spark: "SparkSession", directory: Path) -> tuple[Path, list[str]]:
    addresses = [f"u{n:05d}@d{n % 3}.example" for n in range(COUNT)]
    listed = write_list(directory / "list.csv", [[address, "x"] for address in addresses])
    await asyncio.to_thread(plan, spark, listed, directory / "plan", message=PERSONAL, slots=8)
    return directory / "plan", addresses


def got(sinks: list[Sink]) -> Counter[str]:
    """The number of deliveries to each recipient."""
    return Counter(a for sink in sinks for m in sink.messages for a in m.recipients)


def named_uncertain(node: Node) -> list[str]:
    """The recipients that the relay's event log names uncertain."""
    interrupted = [event["recipient"] for event in logged_events(node.directory, "uncertain")]
    return interrupted + [
        f["recipient"] for f in logged_events(node.directory, "deferred") if f.get("uncertain")
    ]


def accepted(node: Node) -> int:
    return ledger(node.directory).total("accepted")


@pytest.mark.timeout(400)
async def test_on_a_cluster(spark: "SparkSession", directory: Path) -> None:
    """An executor and a relay are killed during the job, with speculative execution.

    Every recipient is accepted once, by one relay; one that got the message twice is named uncertain by that relay.
    """
    plan_path, addresses = await planned(spark, directory)
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(directory))
        sinks = [await stage.receiver(f"d{n}.example") for n in range(3)]
        nodes = [Node(stage, "one"), Node(stage, "two")]
        for node in nodes:
            stack.callback(node.kill)
        spark_cluster = await stack.enter_async_context(cluster(directory))
        sending = Sending(directory, spark_cluster, plan_path, targets=[n.target for n in nodes])
        stack.callback(sending.child.kill)
        await sending.until(lambda: sum(got(sinks).values()) > COUNT // 10, "the first deliveries")
        spark_cluster.kill_executor()
        await sending.until(lambda: sum(got(sinks).values()) > COUNT // 3, "more deliveries")
        nodes[0].kill()
        nodes[0].start()
        sums = await sending.sums()
        assert (sums["accepted"], sums["unsent"], sums["deferred"], sums["refused"]) == (COUNT, 0, 0, 0)
        await until(lambda: set(got(sinks)) == set(addresses), "all recipients", DONE_S)
        for node in nodes:
            await eventually(partial(_drained, node), "an empty queue", DONE_S)
            node.process.stop()
    twice = {address for address, count in got(sinks).items() if count > 1}
    uncertain = {address for node in nodes for address in named_uncertain(node)}
    assert twice <= uncertain
    assert sum(accepted(node) for node in nodes) == COUNT, "no message is enqueued twice"
    assert all(accepted(node) > COUNT // 4 for node in nodes)


async def _drained(node: Node) -> bool:
    from zonemta_py.admin.control_client import ask
    from zonemta_py.admin.requests import ListRequest

    rows = await asyncio.to_thread(lambda: list(ask(node.directory / "queue", ListRequest())))
    return not rows
