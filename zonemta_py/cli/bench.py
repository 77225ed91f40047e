"""``zonemta bench``."""

import os
import platform
import re
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from rich.table import Table

from zonemta_py.bench.measure import Measurement, RelayUnderTest, bars, measure, save_picture
from zonemta_py.bench.peer import PeerMaker
from zonemta_py.bench.peers import PEERS
from zonemta_py.bench.process import signals_end
from zonemta_py.bench.setup import GROUPS, SCENARIOS, Scenario
from zonemta_py.bench.zonemta import ZonemtaRelay
from zonemta_py.cli.common import json_option, print_json, print_table, progress_bar, reports_errors
from zonemta_py.cli.options import DIRECTORY, FILE
from zonemta_py.core.clock import now_ms, utc
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.core.runtime import slow_build
from zonemta_py.core.version import __version__

WIDTH = 160


COLUMNS = ("scenario", "relay", "deliveries/s", "CPU ms each", "in main", "MB/s", "RssAnon MB", "fsyncs", "KB written", "p50 ms", "p99 ms", "tools CPU")  # fmt: skip


def print_results(results: list[Measurement], chosen: list[Scenario], runs: int) -> None:
    """Print the medians, and for each scenario a comparison of the first relay with each other one."""
    click.echo(f"{platform.machine()}, Python {platform.python_version()}, median of {runs} runs\n")
    titles = {scenario.name: scenario.title for scenario in chosen}
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        justify: Literal["left", "right"] = "left" if column in ("scenario", "relay") else "right"
        table.add_column(column, justify=justify)
    for measurement in results:
        table.add_row(titles[measurement.scenario], *_cells(measurement))
    print_table(table, WIDTH)
    click.echo(
        "fsyncs and KB written are per message; p50 and p99 from the 250 to the receiver's final dot; "
        "in main is the CPU of the relay's first process, tools CPU of source and sink, ms per delivery\n"
    )
    for scenario in chosen:
        _print_scenario(scenario, [m for m in results if m.scenario == scenario.name])


def _cells(m: Measurement) -> list[str]:
    return [
        m.relay,
        f"{m.per_second:,.0f}",
        f"{m.cpu_ms:.3f}",
        f"{m.main_cpu_ms:.3f}",
        f"{m.mb_per_second:,.0f}",
        f"{m.rss_anon_mb:,.0f}",
        f"{m.fsyncs:.2f}" if m.fsyncs >= 0 else "-",
        f"{m.written_kb:,.1f}" if m.written_kb >= 0 else "-",
        f"{m.p50_ms:,.1f}",
        f"{m.p99_ms:,.1f}",
        f"{m.tools_cpu_ms:.3f}",
    ]


def _print_scenario(scenario: Scenario, results: list[Measurement]) -> None:
    """Print the rates as bars, the ratios to the first relay, and a soak over time."""
    click.echo(bars(scenario.title, [(m.relay, m.per_second) for m in results], "deliveries/s"))
    for other in results[1:]:
        first = results[0]
        click.echo(
            f"  {first.relay}: {first.per_second / other.per_second:.1f} times the rate, "
            f"1/{other.cpu_ms / first.cpu_ms:.1f} of the CPU of {other.relay}"
        )
    for measurement in results:
        if measurement.over_time:
            click.echo(_over_time(measurement))


def _over_time(measurement: Measurement) -> str:
    """The measurements of a long run over time."""
    head = f"{'from s':>8}{'RssAnon MB':>12}{'open files':>12}{'queue MB':>10}{'p50 ms':>8}{'p99 ms':>8}"
    rows = [
        f"{s.from_s:>8,.0f}{s.rss_anon_mb:>12.1f}{s.open_files:>12}{s.queue_mb:>10.1f}{s.p50_ms:>8.1f}{s.p99_ms:>8.1f}"
        for s in measurement.over_time
    ]
    return "\n".join([head, *rows])


Make = Callable[[Path, int, Scenario], RelayUnderTest]


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of the command, checked by click."""

    scenarios: tuple[str, ...]
    runs: int
    scale: float
    vs: tuple[str, ...]
    processes: list[str]
    no_fsync: bool
    directory: Path | None
    output: Path | None
    plot: Path | None
    as_json: bool


def _process_counts(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> list[str]:
    """Each as ``receivers/senders``; a plain ``auto`` stands for both."""
    found = ["auto/auto" if value == "auto" else value for value in values]
    for value in found:
        if re.fullmatch(r"(auto|\d+)/(auto|\d+)", value) is None:
            raise click.BadParameter(f"'{value}' is not like 0/0, 2/2 or auto", context, option)
    return found


@click.command()
@click.argument(
    "scenarios",
    nargs=-1,
    metavar="[SCENARIO]...",
    type=click.Choice([s.name for s in SCENARIOS] + list(GROUPS)),
)
@click.option(
    "--runs",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Runs of each relay; the median is reported.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 1000),
    default=1.0,
    show_default=True,
    help="Multiply the number of messages by this factor.",
)
@click.option(
    "--vs",
    type=click.Choice(sorted(PEERS)),
    multiple=True,
    help="Also measure this relay, in turn with ours; may be given more than once. none: source and sink alone.",
)
@click.option(
    "--processes",
    callback=_process_counts,
    multiple=True,
    default=["auto"],
    show_default=True,
    metavar="RECEIVERS/SENDERS",
    help="Processes of our relay: 0/0, 2/2, auto; may be given more than once, to compare.",
)
@click.option("--no-fsync", is_flag=True, help="Also measure with durability: none.")
@click.option(
    "--directory",
    type=DIRECTORY,
    help="Create the queues in this directory; its disk matters.  [default: a temporary directory]",
)
@click.option("--output", type=FILE, help="Also write every run, and the machine, as JSON to this file.")
@click.option(
    "--plot",
    type=FILE,
    help="Also draw the medians into this file (.png, .svg); needs the extra 'bench'.",
)
@json_option
@reports_errors
def bench(**values: Any) -> None:
    """Measure source → relay → sink on this machine.

    Nothing is switched off: fsync before 250, header fields, event log. Source and sink share the
    machine, so compare relays within one run, and by CPU per delivery rather than by time. Each run
    has a new queue, and fails unless the sink counted every recipient exactly once. The default are
    the five standard scenarios: kept, connect, list50, 64k, 20m.

    \b
    SCENARIO:
      kept, connect      4 KB messages on persistent sessions, or on a connection each
      auth               on a connection each, with AUTH PLAIN
      list50, list1000   50 or 1,000 recipients per message
      64k, 20m           larger messages
      dkim, dkim-ed25519 signed with RSA-2048, with Ed25519
      tls, tls-connect   encrypted on both sides, on persistent sessions or with a handshake each
      delay              the sink replies 20 ms later
      idle, mixed        single messages alone, or with a flood of another submitter
      senders            the same with a flood of the same host, whose senders have another domain
      deep               with a million waiting recipients, most for a domain that does not answer
      dead               single messages to 200 domains, with mail for 5,000 dead domains queued before
      churned            after five million recipients were queued and delivered
      soak               1,000 a second for a minute (--scale 60: an hour), memory, files, disk and latency over time
      limits             kept, connect and list50 from a pool to a domain in DNS, without and with limits and a warm-up
      kept-mx, kept-limits  two of these six
      sessions           nine: 100, 1,000 and 10,000 connections to 1, 10,000 and 50,000 domains
      sessions-100x1     one of these nine
      standard, all      the five standard scenarios, or every one

    \b
    Examples:
      zonemta bench kept
      zonemta bench --runs 5 --vs postfix
      zonemta bench kept --processes 0/0 --processes 1/0 --processes 2/2
      zonemta bench idle mixed --output latency.json
    """
    options = _Options(**values)
    if slow := slow_build():
        click.secho(f"warning: {slow}", fg="yellow", err=True)
    makers = _makers(options)
    chosen = [s.scaled(options.scale) for s in SCENARIOS if _is_chosen(s.name, options.scenarios)]
    runs: list[Measurement] = []
    with signals_end():
        medians = [median for each in chosen for median in _compare(each, makers, options, runs)]
    machine = _machine()
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_bytes(
            to_json({"machine": machine, "runs": [m.row() for m in runs]}) + b"\n"
        )
    if options.plot is not None:
        note = (
            f"{machine['system']}, {machine['cores']} cores, Python {machine['python']}, "
            f"median of {options.runs}"
        )
        save_picture(options.plot, medians, {s.name: s.title for s in SCENARIOS}, note)
    if not options.as_json:
        print_results(medians, chosen, options.runs)


def _makers(options: _Options) -> dict[str, Make]:
    """The relays to measure, by name. A peer that cannot run here is reported and skipped."""
    makers: dict[str, Make] = {}
    for counts in options.processes:
        several = len(options.processes) > 1
        name = f"zonemta {counts.replace('auto/auto', 'auto')}" if several else "zonemta"
        makers[name] = partial(ZonemtaRelay, name=name, processes=counts)
    if options.no_fsync:
        name = "zonemta, no fsync"
        makers[name] = partial(ZonemtaRelay, name=name, processes=options.processes[0], durable=False)
    for peer in options.vs:
        if missing := PEERS[peer].missing():
            click.echo(f"{peer} is skipped: {missing}", err=True)
        else:
            makers[peer] = partial(_peer, PEERS[peer])
    return makers


def _peer(make: PeerMaker, directory: Path, sink_port: int, scenario: Scenario) -> RelayUnderTest:
    return make(directory, sink_port)


def _is_chosen(name: str, scenarios: tuple[str, ...]) -> bool:
    asked = scenarios or ("standard",)
    return name in asked or any(name in GROUPS.get(group, ()) for group in asked)


def _machine() -> dict[str, object]:
    """The machine of the measurement."""
    return {
        "zonemta": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "time": utc(now_ms()).isoformat(timespec="seconds"),
    }


def _compare(
    scenario: Scenario, makers: dict[str, Make], options: _Options, runs: list[Measurement]
) -> list[Measurement]:
    """The median of each relay; every run is appended to ``runs``.

    The relays take turns, so that changes in the load of the machine affect all of them.
    """
    able = {name: make for name, make in makers.items() if scenario.for_peers or name not in PEERS}
    found: dict[str, list[Measurement]] = {name: [] for name in able}
    total = scenario.messages * scenario.recipients * options.runs * len(able)
    with progress_bar(scenario.title, total) as advance:
        for _ in range(options.runs):
            for name, make in list(able.items()):
                try:
                    run = _measure(scenario, make, options.directory, advance)
                except LocalError as exc:
                    if name not in PEERS:
                        raise
                    click.echo(f"{name} is skipped for {scenario.name}: {exc}", err=True)
                    del able[name], found[name]
                    continue
                found[name].append(run)
                runs.append(run)
                if options.as_json:
                    print_json(run.row())
    return [_median(measurements) for measurements in found.values()]


def _measure(
    scenario: Scenario, make: Make, parent: Path | None, advance: Callable[[int], None]
) -> Measurement:
    with tempfile.TemporaryDirectory(dir=parent, prefix="zonemta-bench-") as directory:
        return measure(scenario, Path(directory), partial(_made, make, scenario), advance)


def _made(make: Make, scenario: Scenario, directory: Path, sink_port: int) -> RelayUnderTest:
    return make(directory, sink_port, scenario)


def _median(measurements: list[Measurement]) -> Measurement:
    middle = statistics.median_low(m.per_second for m in measurements)
    return next(m for m in measurements if m.per_second == middle)
