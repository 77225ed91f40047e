"""``zonemta bench``."""

import platform
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from zonemta_py.bench import postfix
from zonemta_py.bench.measure import Measurement, OurRelay, Subject, measure
from zonemta_py.bench.plot import bars
from zonemta_py.bench.scenarios import SCENARIOS, Scenario
from zonemta_py.cli.common import fail, json_option, print_json, reports_errors
from zonemta_py.cli.progress import progress_bar

Make = Callable[[Path, int], Subject]


@click.command()
@click.argument("scenario", type=click.Choice([s.name for s in SCENARIOS] + ["all"]), default="all")
@click.option(
    "--runs",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Runs of each; the median counts.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 1000),
    default=1.0,
    show_default=True,
    help="So many times as many messages.",
)
@click.option("--vs", type=click.Choice(["postfix"]), help="Run this peer beside it, in turn.")
@click.option("--no-fsync", is_flag=True, help="Also measure with durability: none.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the queues lie; the disk matters.  [default: a temporary folder]",
)
@json_option
@reports_errors
def bench(
    scenario: str,
    runs: int,
    scale: float,
    vs: str | None,
    no_fsync: bool,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Measure source → relay → sink on this machine.

    Everything on: fsync before 250, headers, ledger. Source and sink share the machine, so compare
    relays within one run, and by CPU per delivery rather than by time. Each run has a fresh queue.

    \b
    Examples:
      zonemta bench kept
      zonemta bench --runs 5 --vs postfix
    """
    makers: dict[str, Make] = {"zonemta": OurRelay}
    if no_fsync:
        makers["zonemta, no fsync"] = lambda folder, port: OurRelay(folder, port, durable=False)
    if vs == "postfix":
        if missing := postfix.available():
            fail(missing)
        makers["postfix"] = postfix.PostfixRelay
    chosen = [s.scaled(scale) for s in SCENARIOS if scenario in ("all", s.name)]
    results = [
        median for each in chosen for median in _compare(each, makers, runs, directory, as_json=as_json)
    ]
    if not as_json:
        _print(results, chosen, runs)


def _compare(
    scenario: Scenario, makers: dict[str, Make], runs: int, directory: Path | None, *, as_json: bool
) -> list[Measurement]:
    """The median run of each relay; they take turns, so that the machine's moods hit all alike."""
    found: dict[str, list[Measurement]] = {name: [] for name in makers}
    total = scenario.messages * scenario.recipients * runs * len(makers)
    with progress_bar(scenario.title, total) as advance:
        for _ in range(runs):
            for name, make in makers.items():
                with tempfile.TemporaryDirectory(dir=directory, prefix="zonemta-bench-") as folder:
                    one = measure(scenario, Path(folder), make, advance)
                found[name].append(one)
                if as_json:
                    print_json(one.row())
    return [_median(measurements) for measurements in found.values()]


def _median(measurements: list[Measurement]) -> Measurement:
    middle = statistics.median_low(m.per_second for m in measurements)
    return next(m for m in measurements if m.per_second == middle)


def _print(results: list[Measurement], chosen: list[Scenario], runs: int) -> None:
    click.echo(f"{platform.machine()}, Python {platform.python_version()}, median of {runs} runs\n")
    table = Table(box=None, pad_edge=False)
    columns = (
        "scenario",
        "relay",
        "deliveries/s",
        "CPU ms each",
        "MB/s",
        "RssAnon MB",
        "fsyncs/message",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("scenario", "relay") else "right")
    titles = {scenario.name: scenario.title for scenario in chosen}
    for m in results:
        table.add_row(
            titles[m.scenario],
            m.relay,
            f"{m.per_second:,.0f}",
            f"{m.cpu_ms:.3f}",
            f"{m.mb_per_second:,.0f}",
            f"{m.rss_anon_mb:,.0f}",
            f"{m.fsyncs:.2f}" if m.fsyncs >= 0 else "not measured",
        )
    Console(highlight=False, width=120).print(table)
    click.echo()
    for scenario in chosen:
        of_it = [m for m in results if m.scenario == scenario.name]
        click.echo(bars(scenario.title, [(m.relay, m.per_second) for m in of_it], "deliveries/s"))
        if len(of_it) > 1:
            first = of_it[0]
            for other in of_it[1:]:
                click.echo(
                    f"  {first.relay}: {first.per_second / other.per_second:.1f} times the rate, "
                    f"1/{other.cpu_ms / first.cpu_ms:.1f} of the CPU of {other.relay}"
                )
