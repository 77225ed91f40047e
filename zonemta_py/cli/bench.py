"""``zonemta bench``."""

import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from zonemta_py import __version__
from zonemta_py.bench import picture, postfix
from zonemta_py.bench.measure import Measurement, Subject, measure
from zonemta_py.bench.ours import OurRelay
from zonemta_py.bench.plot import bars
from zonemta_py.bench.scenarios import SCENARIOS, STANDARD, Scenario
from zonemta_py.cli.common import fail, json_option, print_json, reports_errors
from zonemta_py.cli.progress import progress_bar
from zonemta_py.clock import now_ms, utc
from zonemta_py.codec import to_json

Make = Callable[[Path, int, Scenario], Subject]


@click.command()
@click.argument(
    "scenarios",
    nargs=-1,
    metavar="[SCENARIO]...",
    type=click.Choice([s.name for s in SCENARIOS] + ["standard", "all"]),
)
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
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write every run, and the machine, as JSON into this file.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw the medians into this file (.png, .svg); needs the extra 'bench'.",
)
@json_option
@reports_errors
def bench(
    scenarios: tuple[str, ...],
    runs: int,
    scale: float,
    vs: str | None,
    no_fsync: bool,
    directory: Path | None,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure source → relay → sink on this machine.

    Everything on: fsync before 250, headers, ledger. Source and sink share the machine, so compare
    relays within one run, and by CPU per delivery rather than by time. Each run has a fresh queue,
    and fails unless the receiver counted every recipient exactly once. Without SCENARIO the
    standard five are run: kept, connect, list50, 64k, 20m.

    \b
    SCENARIO:
      kept, connect      4 KB messages on kept sessions, or one connection each
      list50, list1000   so many recipients a message
      64k, 20m           larger messages
      dkim               signed with RSA-2048
      delay              the receiver answers 20 ms later
      idle, mixed        single messages alone, and beside another submitter's flood
      deep               beside a million waiting recipients, most for a domain that does not answer
      standard, all      several of them

    \b
    Examples:
      zonemta bench kept
      zonemta bench --runs 5 --vs postfix
      zonemta bench idle mixed --output latency.json
    """
    makers: dict[str, Make] = {"zonemta": OurRelay}
    if no_fsync:
        makers["zonemta, no fsync"] = partial(OurRelay, durable=False)
    if vs == "postfix":
        if missing := postfix.available():
            fail(missing)
        makers["postfix"] = lambda folder, port, _: postfix.PostfixRelay(folder, port)
    chosen = [s.scaled(scale) for s in SCENARIOS if _is_chosen(s.name, scenarios)]
    every: list[Measurement] = []
    results = [
        median
        for each in chosen
        for median in _compare(each, makers, runs, directory, every, as_json=as_json)
    ]
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(to_json({"machine": _machine(), "runs": [m.row() for m in every]}) + b"\n")
    titles = {s.name: s.title for s in SCENARIOS}
    if plot is not None:
        note = f"{_machine()['system']}, {os.cpu_count()} cores, Python {platform.python_version()}, median of {runs}"
        picture.save(plot, results, titles, note)
    if not as_json:
        _print(results, chosen, runs)


def _is_chosen(name: str, scenarios: tuple[str, ...]) -> bool:
    asked = scenarios or ("standard",)
    return "all" in asked or name in asked or ("standard" in asked and name in STANDARD)


def _machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "zonemta": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "time": utc(now_ms()).isoformat(timespec="seconds"),
    }


def _compare(
    scenario: Scenario,
    makers: dict[str, Make],
    runs: int,
    directory: Path | None,
    every: list[Measurement],
    *,
    as_json: bool,
) -> list[Measurement]:
    """The median run of each relay; they take turns, so that the machine's moods hit all alike."""
    able = {name: make for name, make in makers.items() if scenario.for_peers or name != "postfix"}
    found: dict[str, list[Measurement]] = {name: [] for name in able}
    total = scenario.messages * scenario.recipients * runs * len(able)
    with progress_bar(scenario.title, total) as advance:
        for _ in range(runs):
            for name, make in able.items():
                with tempfile.TemporaryDirectory(dir=directory, prefix="zonemta-bench-") as folder:
                    here = partial(_made, make, scenario)
                    one = measure(scenario, Path(folder), here, advance)
                found[name].append(one)
                every.append(one)
                if as_json:
                    print_json(one.row())
    return [_median(measurements) for measurements in found.values()]


def _made(make: Make, scenario: Scenario, folder: Path, sink_port: int) -> Subject:
    return make(folder, sink_port, scenario)


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
        "fsyncs",
        "KB written",
        "p50 ms",
        "p99 ms",
        "tools CPU",
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
            f"{m.fsyncs:.2f}" if m.fsyncs >= 0 else "-",
            f"{m.written_kb:,.1f}" if m.written_kb >= 0 else "-",
            f"{m.p50_ms:,.1f}",
            f"{m.p99_ms:,.1f}",
            f"{m.tools_cpu_ms:.3f}",
        )
    Console(highlight=False, width=130).print(table)
    click.echo(
        "fsyncs and KB written are per message; p50 and p99 from the 250 to the receiver's final dot; "
        "tools CPU is of source and sink, ms per delivery"
    )
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
