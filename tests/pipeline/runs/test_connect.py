"""Every job as a client of a Spark Connect server that works elsewhere, with a relay that delivers."""

import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.relay import relaying, staged
from tests.pipeline.campaigns import PERSONAL, write_list
from tests.pipeline.connect import Client, connect_server
from tests.pipeline.feedback.test_dsn import as_mbox
from tests.pipeline.runs.test_campaign import empty_queue
from zonemta_py.bench.process import free_port
from zonemta_py.core.errors import LocalError
from zonemta_py.sink.script import Rule, Step

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
pytest.importorskip("pyspark")

COUNT = 30
GONE = COUNT // 3


@pytest.fixture(autouse=True)
def java() -> None:
    from zonemta_py.pipeline.spark.session import find_java

    try:
        find_java()
    except LocalError as exc:
        pytest.skip(str(exc))


async def rows(client: Client, *arguments: str) -> list[dict[str, Any]]:
    return (await client.run(*arguments))[0]


async def row(client: Client, *arguments: str) -> dict[str, Any]:
    [found] = await rows(client, *arguments)
    return found


async def error(client: Client, *arguments: str, exit_code: int = 1) -> str:
    return (await client.run(*arguments, exit_code=exit_code))[1]


PLAN = (
    "plan",
    "list.csv",
    "--message",
    "letter.eml",
    "--from",
    "news@example.com",
    "--campaign",
    "june",
)


@pytest.mark.timeout(400)
async def test_every_job(directory: Path) -> None:
    async with connect_server(directory) as address:
        async with aclosing(Client(directory, address)) as client:
            await deliver(client)
            await reports(client)
            await lists(client)
            await what_differs(client)
        assert list((directory / "server").iterdir()) == [], "nothing was written where the server works"


async def deliver(client: Client) -> None:
    """Plan and send a list; one in three bounces."""
    rows = [[f"{'gone' if n % 3 == 0 else 'fine'}{n}@d0.example", "x"] for n in range(COUNT)]
    write_list(client.directory / "list.csv", [*rows, ["wrong", "y"], rows[0]])
    (client.directory / "letter.eml").write_bytes(PERSONAL)
    async with staged(client.directory) as stage:
        await stage.receiver(
            "d0.example", Rule(Step.RCPT, recipient="gone*", reply="550 5.1.1 no such user")
        )
        await stage.receiver("example.com")
        async with relaying(stage.config()) as relay:
            manifest = await row(client, *PLAN, "--output", "plan")
            sums = [manifest[name] for name in ("input", "planned", "rejected", "duplicate")]
            assert sums == [COUNT + 2, COUNT, 1, 1]
            target = str(relay.addresses[0])
            counts = await row(client, "send", "plan", "--relay", target)
            assert counts["accepted"] == counts["planned"] == COUNT
            assert await row(client, "send", "plan", "--relay", target) == counts, "nothing is left"
            await empty_queue(relay)
    await until(lambda: any((client.directory / "events").rglob("*.zst")), "a sealed segment")


async def reports(client: Client) -> None:
    sums = await row(client, "report", "events", "--plan", "plan", "--output", "report")
    assert sums["bounced"] == GONE
    assert "june" in (client.directory / "report" / "report.html").read_text()
    counts = await row(client, "reconcile", "plan", "events", "--output", "outcomes")
    assert (counts["delivered"], counts["bounced"]) == (COUNT - GONE, GONE)
    compacted = await row(client, "compact", "events", "--output", "lake")
    assert compacted["records"] > 2 * COUNT
    assert await row(client, "report", "lake/events", "--output", "report", "--overwrite") == sums
    assert await row(client, "compact", "events", "--output", "state", "--table", "mail") == compacted
    unknown = {"damaged_segments": None, "gaps": None}  # a table does not say what compact found
    assert await row(client, "report", "table:mail", "--output", "from-table") == sums | unknown
    assert await row(client, "report", "events", "--output", "now", "--update") == sums
    assert await rows(client, "anomaly", "events") == []
    predicted = await rows(client, "simulate", "events", "--plan", "plan")
    assert sum(row["delivered"] + row["bounced"] for row in predicted) == COUNT
    await rows(client, "recommend", "events", "--output", "recommended.yaml")
    assert (client.directory / "recommended.yaml").exists()


async def lists(client: Client) -> None:
    mail = as_mbox(client.directory).name
    counts = await row(client, "dsn", mail, "--plan", "plan", "--output", "mail")
    assert counts["kinds"] == {"failed": 6, "complaint": 1}
    entries = await row(client, "suppress", "events", "--reports", "mail", "--output", "bounced.csv")
    assert entries["entries"] == GONE
    write_list(client.directory / "opens.csv", [["fine1@d0.example", "2026-11-20"]], ("email", "time"))
    day = ("--as-of", "2026-11-24")
    counts = await row(
        client, "segment", "opens.csv", "--list", "list.csv", *day, "--output", "segments"
    )
    assert (counts["segments"]["active_30"], counts["segments"]["sunset"]) == (1, COUNT - 1)
    suppress = ("--suppress", "segments/sunset.csv", "--output", "next")
    assert (await row(client, *PLAN, *suppress))["planned"] == 1


async def what_differs(client: Client) -> None:
    """Damage is found; a single file is not written to a URL; settings of the server are refused."""
    segment = next((client.directory / "events").rglob("*.zst"))
    segment.write_bytes(segment.read_bytes()[:-20])
    errors = await error(client, "report", "events", "--output", "damaged", exit_code=3)
    assert f"warning: {segment}" in errors.replace("file:", "")
    assert (client.directory / "damaged" / "quarantine" / "segments.jsonl").exists()
    url = f"file://{client.directory}/url"
    errors = await error(client, "report", "events", "--output", url)
    assert "cannot be written over Spark Connect; use a local directory" in errors
    assert not (client.directory / "url").exists()
    memory = ("--conf", "spark.executor.memory=1g")
    errors = await error(client, *PLAN, "--output", "refused", *memory)
    assert "spark.executor.memory can be set only where the server is started" in errors


async def test_no_server(directory: Path) -> None:
    """The command ends at once, and not after the ten minutes of the client."""
    async with aclosing(Client(directory, f"sc://127.0.0.1:{free_port()}")) as client:
        began_s = time.monotonic()
        assert "no Spark Connect server: [Errno 111]" in await error(client, "anomaly", "events")
        assert time.monotonic() - began_s < scaled(30)
