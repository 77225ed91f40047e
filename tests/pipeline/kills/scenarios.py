"""What the random kills do: each job with its output, the work that it is given, and what has to be true when it has ended."""

from base64 import b64encode
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pyarrow.dataset as ds

from tests.kit.deadlines import until
from tests.pipeline.campaigns import LETTER, PERSONAL, RelayAndSinks, write_list
from tests.pipeline.drivers import DONE_S, Job
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_segment
from zonemta_py.pipeline.events.log import SMALL_BYTES
from zonemta_py.pipeline.plan.request import BY_TASKS_BYTES_MIN

RECIPIENTS = 12_000  # more than those of the first round of ``send``
EVENTS = 20_000
HOURS = 5


class Scenario(Protocol):
    """``output``: the directory that the job writes to. ``arguments``: of the job."""

    output: Path
    arguments: list[str]

    async def add_work(self) -> None:
        """Give the job something to do; before its first run, and after one that ended."""

    async def check(self, printed: dict[str, Any] | None) -> None:
        """Fails unless the output is that of one undisturbed run. ``printed``: None when it was complete before."""


def rows_in(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(directory, format="parquet").to_table().to_pylist()
    return rows


class Plan:
    """Each plan has another output, since one that is complete is not replaced."""

    def __init__(self, directory: Path, letter: bytes = LETTER, recipients: int = RECIPIENTS) -> None:
        self.directory, self.number = directory, 0
        self.addresses = [f"u{n:05d}@d{n % 3}.example" for n in range(recipients)]
        # A list that is so long that tasks write the plan, or one whose fields go into messages.
        name = "x" * (BY_TASKS_BYTES_MIN // RECIPIENTS if letter == LETTER else 1)
        write_list(directory / "list.csv", [[address, name] for address in self.addresses])
        (directory / "letter.eml").write_bytes(letter)

    async def add_work(self) -> None:
        self.number += 1
        self.output = self.directory / f"plan-{self.number}"
        self.arguments = [
            "plan", str(self.directory / "list.csv"), "--message", str(self.directory / "letter.eml"), "--from", "n@example.com",
            "--campaign", f"june-{self.number}", "--output", str(self.output),
        ]  # fmt: skip

    async def check(self, printed: dict[str, Any] | None) -> None:
        [manifest] = rows_in(self.output / "manifest")
        printed, count = printed or manifest, len(self.addresses)
        assert (printed["planned"], printed["input"]) == (count, count)
        envelopes = rows_in(self.output / "envelopes")
        found = sorted(each["address"] for row in envelopes for each in row["recipients"])
        assert found == self.addresses
        assert len({row["key"] for row in envelopes}) == len(envelopes) == printed["envelopes"]


class Send:
    """Plans of messages to one recipient each, and a relay that is not killed."""

    def __init__(self, directory: Path, here: RelayAndSinks, recipients: int) -> None:
        self.plan, self.here = Plan(directory, PERSONAL, recipients), here

    async def add_work(self) -> None:
        await self.plan.add_work()
        await Job(self.plan.directory, *self.plan.arguments).result()
        self.output = self.plan.output
        self.arguments = ["send", str(self.output), "--relay", self.here.target]

    async def check(self, printed: dict[str, Any] | None) -> None:
        assert printed is not None
        counts = tuple(
            printed[name] for name in ("accepted", "refused", "deferred", "unsent", "earlier")
        )
        assert counts == (len(self.plan.addresses), 0, 0, 0, 0)
        expected = len(self.plan.addresses) * self.plan.number
        await until(lambda: len(self.here.delivered()) >= expected, "every delivery", DONE_S)
        times = Counter(self.here.delivered())
        assert times == dict.fromkeys(self.plan.addresses, self.plan.number)


class _OfEvents:
    """A log that gets a segment for each run that ended."""

    job: tuple[str, ...]
    reply_bytes = 0  # of each event that zstd cannot compress

    def __init__(self, directory: Path) -> None:
        self.directory, self.events, self.segments = directory, 0, 0

    async def add_work(self) -> None:
        first = self.events + 1
        self.events += EVENTS
        self.segments += 1
        random_bytes = Random(first).randbytes
        records = [
            delivered(
                n, time_ms=HOUR_BEGINS_MS + n % HOURS * HOUR_MS, domain=f"d{n % 50}.example",
                reply=f"Ok {b64encode(random_bytes(self.reply_bytes)).decode()}",
            )
            for n in range(first, self.events + 1)
        ]  # fmt: skip
        write_segment(self.directory / "log", f"s{first}", records)
        self.output = self.directory / self.name
        self.arguments = [*self.job, str(self.directory / "log"), "--output", str(self.output)]

    @property
    def name(self) -> str:
        return "output"


class Compact(_OfEvents):
    job = ("compact",)

    async def check(self, printed: dict[str, Any] | None) -> None:
        seqs = sorted(row["seq"] for row in rows_in(self.output / "events"))
        assert seqs == list(range(1, self.events + 1))
        assert not (self.output / "staging").exists()
        assert not (self.output / "moving.json").exists()


class Report(_OfEvents):
    """Each report has another output, since one that is complete is not replaced."""

    job: tuple[str, ...] = ("report",)

    @property
    def name(self) -> str:
        return f"report-{self.segments}"

    async def check(self, printed: dict[str, Any] | None) -> None:
        assert printed is None or printed["delivered"] == self.events
        for table in ("hours", "days"):
            assert sum(row["delivered"] for row in rows_in(self.output / table)) == self.events
        by = Counter(row["dimension"] for row in rows_in(self.output / "rates"))
        assert (by["all"], by["domain"]) == (1, 50)
        assert (self.output / "report.html").read_text().rstrip().endswith("</html>")
        assert not (self.output / "_next").exists()


class LargeReport(Report):
    """By Spark, which reads segments of more than SMALL_BYTES."""

    reply_bytes = 1 + SMALL_BYTES // EVENTS


class Update(Report):
    job = ("report", "--update")

    @property
    def name(self) -> str:
        return "output"
