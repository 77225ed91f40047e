"""``zonemta pipeline demo``: a campaign from its list to the list of the next one, on this machine."""

import csv
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonemta_py.bench.process import CommandProcess, free_port, wait_empty
from zonemta_py.cli.common import EXIT_FAILED, reports_errors
from zonemta_py.cli.pipeline.options import Where, spark_options
from zonemta_py.cli.progress import step_shower
from zonemta_py.config.load import load_config
from zonemta_py.core.clock import monotonic_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRAIN_S = 600.0
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

Step = Callable[[str], None]


@click.command()
@click.option(
    "--recipients",
    type=click.IntRange(100, 5_000_000),
    default=200_000,
    show_default=True,
    help="Rows of the synthetic list.",
)
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), help="Leave everything in this folder."
)
@spark_options
@reports_errors
def demo(recipients: int, keep: Path | None, where: Where) -> None:
    """A campaign from its list to the list of the next one, on this machine.

    A list with duplicates and bad rows is planned and sent through a real relay to a receiver that bounces some and
    defers some. Then the report, one outcome for each recipient, a suppression file from the bounces, and the next
    plan without them. Every sum is checked.

    \b
    Example:
      zonemta pipeline demo --recipients 20000 --keep demo
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="zonemta-pipeline-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with step_shower() as step:
            step("writing a list")
            bad = _write_list(folder / "list.csv", recipients)
            step("starting Spark")
            with where.session() as spark:
                _campaign(spark, folder, bad, step)
    finally:
        if keep is None:
            shutil.rmtree(folder)
    if keep is not None:
        click.echo(f"everything is in {folder}; the report is {folder}/report/report.html")


def _write_list(path: Path, rows: int) -> int:
    """A list in which every hundredth row is no address; how many those are."""
    rng, bad = random.Random(7), 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["email", "name"])
        for number in range(rows):
            if number % 100 == 99:
                writer.writerow(["not an address", ""])
                bad += 1
                continue
            who = ("gone", "busy", *["reader"] * 18)[rng.randrange(20)]
            domain = rng.choice((*DOMAINS, f"d{rng.randrange(500)}.example"))
            writer.writerow([f"{who}{rng.randrange(rows)}@{domain}", f"Reader {number}"])
    return bad


def _campaign(spark: "SparkSession", folder: Path, bad: int, step: Step) -> None:
    from zonemta_py.pipeline.jobs import plan, reconcile, report, send, suppress
    from zonemta_py.pipeline.rules.suppression import Suppression, read_suppression
    from zonemta_py.pipeline.submission import Manners

    began_s = monotonic_s()
    sink_port = free_port()
    (folder / "zonemta.yaml").write_text(CONFIG.format(sink_port=sink_port))
    (folder / "script.yaml").write_text(SCRIPT)
    sink = CommandProcess(
        [
            "sink",
            "--listen",
            f"127.0.0.1:{sink_port}",
            "--script",
            str(folder / "script.yaml"),
            "--json",
        ],
        folder / "sink.log",
    )
    relay = CommandProcess(
        ["serve", "-c", str(folder / "zonemta.yaml"), "--log-level", "warning"], folder / "relay.log"
    )

    def request(name: str, suppression: Suppression) -> plan.Request:
        return plan.Request(
            place=str(folder / "list.csv"), output=str(folder / name), campaign=name, message=LETTER,
            sender="news@sender.example", suppression=suppression, config=load_config(folder / "zonemta.yaml"),
        )  # fmt: skip

    try:
        target = relay.wait_ready()[0]
        june = plan.make_plan(spark, request("june", Suppression()), step)
        _show(f"planned in {june.envelopes:,} messages", june.planned, began_s)
        _hold("as many rejected as bad rows", june.rejected == bad)
        manners = Manners(sender=june.sender, message=LETTER, relays=(target,))
        sums = send.send_plan(spark, str(folder / "june"), manners, step)
        _show("accepted by the relay", sums.accepted, began_s)
        _hold("everybody accepted", sums.complete)
        again = send.send_plan(spark, str(folder / "june"), manners, step)
        _hold("a second run sends nothing", again == sums)
        step("waiting for the last delivery")
        wait_empty(folder / "queue", DRAIN_S)
        relay.stop()
        events = str(folder / "events")
        step("drawing the report")
        asked = report.Request(events, [str(folder / "june")], str(folder / "report"))
        figures = report.make_report(spark, asked, step)
        counts = reconcile.reconcile(spark, str(folder / "june"), events, None, step)
        _show("delivered", counts["delivered"], began_s)
        _show("bounced", counts["bounced"], began_s)
        _hold(
            "every recipient delivered or bounced",
            counts["delivered"] + counts["bounced"] == june.planned,
        )
        _hold("the report counts the same bounces", figures["bounced"] == counts["bounced"])
        bounced = suppress.make_suppression(
            spark, suppress.Request(events, folder / "bounced.txt"), step
        )
        _show("in the suppression file", bounced, began_s)
        entries = read_suppression(iter([folder / "bounced.txt"]))
        july = plan.make_plan(spark, request("july", entries), step)
        _show("planned for the next campaign", july.planned, began_s)
        _hold(
            "the next plan lacks the bounced",
            july.suppressed == counts["bounced"] == june.planned - july.planned,
        )
    finally:
        relay.kill()
        sink.kill()


def _show(what: str, count: int, began_s: float) -> None:
    click.echo(f"{count:>12,} {what}  ({monotonic_s() - began_s:.0f} s)")


def _hold(what: str, holds: bool) -> None:
    if not holds:
        click.secho(f"not so: {what}", fg="red", err=True)
        sys.exit(EXIT_FAILED)
