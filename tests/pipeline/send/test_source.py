"""The data source ``zonemta``."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.relay import ledger
from tests.pipeline.campaigns import PERSONAL, personal_plan
from zonemta_py.bench.process import CommandProcess, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_data_source(spark: "SparkSession", directory: Path) -> None:
    """``write`` submits, and a second time delivers nothing twice; ``read`` returns the waiting recipients.

    The relay is a process of its own: Spark finds sources by the session of the main thread.
    """
    from zonemta_py.pipeline.send.source import ZonemtaSource

    spark.dataSource.register(ZonemtaSource)
    plan_path = personal_plan(spark, directory, 30)
    port = free_port()
    (directory / "z.yaml").write_text(
        f"listeners: [{{address: '127.0.0.1:0'}}]\nqueue: {{directory: queue, min_free_disk: 1MiB}}\n"
        f"events: {{directory: events}}\nzones: {{default: {{smarthost: '127.0.0.1:{port}'}}}}\n"
    )
    (directory / "rules.yaml").write_text(
        "- {at: rcpt, recipient: 'u0000*', reply: '451 4.2.0 later'}\n"
    )
    rules = ["--script", str(directory / "rules.yaml"), "--json"]
    sink = CommandProcess(["sink", "--listen", f"127.0.0.1:{port}", *rules], directory / "sink.log")
    relay = CommandProcess(
        ["serve", "-c", str(directory / "z.yaml"), "--log-level", "warning"], directory / "relay.log"
    )
    try:
        target = relay.wait_ready()[0]
        options = {
            "sender": "n@example.com",
            "message": PERSONAL.decode(),
            "connections": "2",
            "relays": target,
        }
        envelopes = spark.read.parquet(f"{plan_path}/envelopes")
        for _ in range(2):
            envelopes.write.format("zonemta").mode("append").options(**options).save()
        waiting = spark.read.format("zonemta").option("queue", str(directory / "queue")).load()
        for _ in range(100):  # each read takes Spark a while
            rows = {(row["recipient"], row["zone"]) for row in waiting.collect()}
            if len(rows) == 1:
                break
        assert rows == {("u0000@d0.example", "default")}
        relay.stop()
    finally:
        relay.kill()
        sink.kill()
    assert ledger(directory).total("accepted") == 30
    assert ledger(directory).total("delivered") == 29


def test_a_data_source_without_its_options(spark: "SparkSession") -> None:
    rows = spark.createDataFrame([("k",)], "key string")
    with pytest.raises(Exception, match="the columns recipients are missing"):
        rows.write.format("zonemta").mode("append").save()
    with pytest.raises(Exception, match="needs the option 'queue'"):
        spark.read.format("zonemta").load().collect()
