"""The exit codes that docs/pipeline.md promises for sending and reconciling, on plans that were really sent."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from tests.kit.relay import staged
from tests.pipeline.campaigns import personal_plan
from tests.pipeline.segments import accepted, write_segment
from zonemta_py.cli.main import main
from zonemta_py.sink.script import Rule, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def pipeline(*arguments: object) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke, main, ["pipeline", *map(str, arguments), "--json"]
    )


@pytest.mark.usefixtures("kept_session")
@pytest.mark.parametrize(
    ("reply", "name"), [("550 5.7.1 not for you", "refused"), ("452 4.2.2 full", "deferred")]
)
async def test_a_run_that_is_not_complete(
    spark: "SparkSession", directory: Path, reply: str, name: str
) -> None:
    """The counts are printed and the exit code is 1; the next run submits what is left, and ends with 0 if that is accepted."""
    plan = await asyncio.to_thread(personal_plan, spark, directory, 30)
    async with staged(directory) as stage:
        rule = Rule(Step.RCPT, recipient="*@d1*", reply=reply, times=1)
        await stage.receiver("relay.example", rule)
        target = f"127.0.1.1:{stage.port}"
        first = await pipeline("send", plan, "--relay", target, "--timeout", "0s")
        assert first.exit_code == 1, first.output
        counts = json.loads(first.stdout.splitlines()[-1])
        assert (counts["accepted"], counts[name]) == (20, 10)
        second = await pipeline("send", plan, "--relay", target)
        counts = json.loads(second.stdout.splitlines()[-1])
        assert second.exit_code == (1 if name == "refused" else 0), second.output
        assert counts["accepted"] == (20 if name == "refused" else 30)


@pytest.mark.usefixtures("kept_session")
async def test_sums_that_differ_from_the_plan(spark: "SparkSession", directory: Path) -> None:
    """A plan that has lost a file: the error says both sums, and the output is not complete."""
    plan = await asyncio.to_thread(personal_plan, spark, directory, 30)
    write_segment(directory / "events", "a", [accepted(1, ["u0000@d0.example"])])
    output = directory / "out"
    arguments = ("reconcile", plan, directory / "events", "--output", output)
    assert (await pipeline(*arguments)).exit_code == 0
    for path in sorted((plan / "envelopes").rglob("*.parquet"))[:1]:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    found = await pipeline(*arguments, "--overwrite")
    assert found.exit_code == 1, found.output
    assert "30" in found.stderr
    assert not (output / "_SUCCESS").exists()
