"""``zonemta pipeline demo``: a campaign, its delivery, and the plan of the next campaign, on this machine."""

import csv
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonemta_py.bench.process import CommandProcess, free_port, signals_end, wait_empty
from zonemta_py.cli.common import EXIT_FAILED, json_option, print_json, reports_errors
from zonemta_py.cli.options import DIRECTORY
from zonemta_py.cli.pipeline.common import SparkOptions, spark_options
from zonemta_py.config.load import load_config
from zonemta_py.core.clock import monotonic_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zonemta_py.pipeline.plan.request import PlanManifest
    from zonemta_py.pipeline.spark.tables import Progress

DRAIN_TIMEOUT_S = 600.0
SENDER = "news@sender.example"
DOMAINS = ("gmail.com", "gmail.com", "gmail.com", "outlook.com", "yahoo.com", "web.de")
LETTER = b"From: News <news@sender.example>\nSubject: The June letter\n\nDear reader,\n\nthis is June.\n"
CONFIG = """\
hostname: relay.sender.example
listeners: [{{address: "127.0.0.1:0"}}]
queue: {{directory: queue, min_free_disk: 64MiB}}
events: {{directory: events, rotate: {{age: 10s}}}}
zones:
  default: {{smarthost: "127.0.0.1:{sink_port}", recipients_per_transaction: 50, retry: {{delays: [1s]}}}}
"""
SCRIPT = """\
- {at: rcpt, recipient: "gone*", reply: "550 5.1.1 no such user here"}
- {at: rcpt, recipient: "busy*", reply: "451 4.7.1 greylisted, come back later", times: 1}
"""


@click.command(short_help="Run a campaign and its delivery on this machine.")
@click.option(
    "--recipients",
    type=click.IntRange(100, 5_000_000),
    default=200_000,
    show_default=True,
    help="Rows of the synthetic list.",
)
@click.option("--keep", type=DIRECTORY, help="Write all files into this directory, and keep them.")
@spark_options
@json_option
@reports_errors
def demo(*, recipients: int, keep: Path | None, spark: SparkOptions, as_json: bool) -> None:
    """Run a campaign, its delivery, and the plan of the next campaign, on this machine.

    Plans a list with duplicates and bad rows, and sends it through a relay to a receiver that bounces some recipients
    and defers some. Then makes the report, the outcome of each recipient, a suppression file from the bounces, and the
    next plan without them. Every sum is checked.

    \b
    Example:
      zonemta pipeline demo --recipients 20000 --keep demo
    """
    directory = keep or Path(tempfile.mkdtemp(prefix="zonemta-pipeline-"))
    directory.mkdir(parents=True, exist_ok=True)
    with signals_end():
        try:
            bad_rows = _write_list(directory / "list.csv", recipients)
            with spark.job() as (session, progress):
                _Campaign(session, progress, directory, as_json, monotonic_s()).run(bad_rows)
        finally:
            if keep is None:
                shutil.rmtree(directory)
    if keep is not None and not as_json:
        click.echo(f"all files are in {directory}; the report is {directory}/report/report.html")


def _write_list(path: Path, rows: int) -> int:
    """A list in which every hundredth row is not an address; returns their number."""
    rng, bad = random.Random(7), 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["email", "name"])
        for number in range(rows):
            if number % 100 == 99:
                writer.writerow(["not an address", ""])
                bad += 1
                continue
            user = ("gone", "busy", *["reader"] * 18)[rng.randrange(20)]
            domain = rng.choice((*DOMAINS, f"d{rng.randrange(500)}.example"))
            writer.writerow([f"{user}{rng.randrange(rows)}@{domain}", f"Reader {number}"])
    return bad


@dataclass(frozen=True, slots=True)
class _Campaign:
    """The steps of the demo; each prints a count and checks its sums."""

    spark: "SparkSession"
    progress: "Progress"
    directory: Path
    as_json: bool
    began_s: float

    def run(self, bad_rows: int) -> None:
        with self._relay() as (address, relay):
            june = self._plan("june", ())
            self._show("planned", june.planned, f" in {june.envelopes:,} messages")
            _check("every bad row was rejected", june.rejected == bad_rows)
            self._send(june, address)
            self.progress("waiting for the last delivery")
            wait_empty(self.directory / "queue", DRAIN_TIMEOUT_S)
            relay.stop()  # seals the last segment of the event log
        counts = self._analyse(june)
        july = self._plan("july", (str(self._suppress()),))
        self._show("planned for the next campaign", july.planned)
        _check(
            "the next plan lacks the bounced recipients",
            july.suppressed == counts["bounced"] == june.planned - july.planned,
        )

    @contextmanager
    def _relay(self) -> Iterator[tuple[str, CommandProcess]]:
        """The address of a relay that delivers to a scripted sink, and its process."""
        sink_port = free_port()
        config, script = self.directory / "zonemta.yaml", self.directory / "script.yaml"
        config.write_text(CONFIG.format(sink_port=sink_port))
        script.write_text(SCRIPT)
        sink_arguments = ["--listen", f"127.0.0.1:{sink_port}", "--script", str(script), "--json"]
        sink = CommandProcess(["sink", *sink_arguments], self.directory / "sink.log")
        try:
            arguments = ["serve", "-c", str(config), "--log-level", "warning"]
            relay = CommandProcess(arguments, self.directory / "relay.log")
            try:
                yield relay.wait_ready()[0], relay
            finally:
                relay.kill()
        finally:
            sink.kill()

    def _plan(self, campaign: str, suppress: tuple[str, ...]) -> "PlanManifest":
        from zonemta_py.pipeline.plan.job import make_plan
        from zonemta_py.pipeline.plan.request import PlanRequest

        request = PlanRequest(
            source=str(self.directory / "list.csv"),
            output=str(self.directory / campaign),
            campaign=campaign,
            sender=SENDER,
            message=LETTER,
            config=load_config(self.directory / "zonemta.yaml"),
            suppress=suppress,
        )
        return make_plan(self.spark, request, self.progress).manifest

    def _send(self, manifest: "PlanManifest", address: str) -> None:
        from zonemta_py.pipeline.send.job import send_plan
        from zonemta_py.pipeline.send.submission import SubmitOptions

        plan = str(self.directory / manifest.campaign)
        options = SubmitOptions(sender=manifest.sender, message=LETTER, relays=(address,))
        counts = send_plan(self.spark, plan, options, self.progress)
        self._show("accepted by the relay", counts.accepted)
        _check("every recipient was accepted", counts.complete)
        again = send_plan(self.spark, plan, options, self.progress)
        _check("a second run submits nothing", again == counts)

    def _analyse(self, manifest: "PlanManifest") -> dict[str, int]:
        from zonemta_py.pipeline.events.log import open_log
        from zonemta_py.pipeline.report.job import ReportRequest, make_report
        from zonemta_py.pipeline.report.outcomes import ReconcileRequest, reconcile

        plan, events = str(self.directory / manifest.campaign), str(self.directory / "events")
        self.progress("making the report")
        request = ReportRequest(events, [plan], str(self.directory / "report"))
        log = open_log(self.spark, events)
        sums = make_report(self.spark, request, log, self.progress)
        counts = reconcile(self.spark, ReconcileRequest(plan, log), self.progress)
        self._show("delivered", counts["delivered"])
        self._show("bounced", counts["bounced"])
        _check(
            "every recipient was delivered or bounced",
            counts["delivered"] + counts["bounced"] == manifest.planned,
        )
        _check("the report counts the same bounces", sums["bounced"] == counts["bounced"])
        return counts

    def _suppress(self) -> Path:
        from zonemta_py.pipeline.events.log import open_log
        from zonemta_py.pipeline.feedback.bounces import SuppressRequest, make_suppression

        path = self.directory / "bounced.txt"
        log = open_log(self.spark, str(self.directory / "events"))
        request = SuppressRequest(log, str(path))
        self._show("in the suppression file", make_suppression(self.spark, request, self.progress))
        return path

    def _show(self, what: str, count: int, more: str = "") -> None:
        if self.as_json:
            print_json(
                {"step": what, "recipients": count, "elapsed_s": round(monotonic_s() - self.began_s, 1)}
            )
            return
        click.echo(f"{count:>12,} {what}{more}  ({monotonic_s() - self.began_s:.0f} s)")


def _check(claim: str, holds: bool) -> None:
    if not holds:
        click.secho(f"failed: {claim}", fg="red", err=True)
        sys.exit(EXIT_FAILED)
