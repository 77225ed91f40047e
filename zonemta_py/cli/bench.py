"""``zonemta bench``."""

import os
import platform
import re
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from zonemta_py import __version__
from zonemta_py.bench.charts import save_picture
from zonemta_py.bench.measure import Measurement, RelayUnderTest, measure
from zonemta_py.bench.peers import PEERS
from zonemta_py.bench.peers.peer import PeerMaker
from zonemta_py.bench.scenarios import SCENARIOS, STANDARD, Scenario
from zonemta_py.bench.zonemta import ZonemtaRelay
from zonemta_py.cli.bench_table import print_results
from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.progress import progress_bar
from zonemta_py.core.clock import now_ms, utc
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import LocalError

Make = Callable[[Path, int, Scenario], RelayUnderTest]


def _arrangements(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Each as ``receivers/senders``, ``auto`` for both or either."""
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
@click.option(
    "--vs",
    type=click.Choice(sorted(PEERS)),
    multiple=True,
    help="Run this peer beside it, in turn; may be given more than once. none: source and sink alone.",
)
@click.option(
    "--processes",
    callback=_arrangements,
    multiple=True,
    default=["auto"],
    show_default=True,
    metavar="RECEIVERS/SENDERS",
    help="The relay's processes: 0/0, 2/2, auto; may be given more than once, to compare.",
)
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
    vs: tuple[str, ...],
    processes: list[str],
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
      tls, tls-connect   encrypted on both sides, on kept sessions or with a handshake each
      delay              the receiver answers 20 ms later
      idle, mixed        single messages alone, and beside another submitter's flood
      deep               beside a million waiting recipients, most for a domain that does not answer
      churned            after five million recipients came and went
      soak               1,000 a second for a minute (--scale 60: an hour), memory, files, disk and latency over time
      standard, all      several of them

    \b
    Examples:
      zonemta bench kept
      zonemta bench --runs 5 --vs postfix
      zonemta bench kept --processes 0/0 --processes 1/0 --processes 2/2
      zonemta bench idle mixed --output latency.json
    """
    makers = _makers(processes, vs, no_fsync=no_fsync)
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
        save_picture(plot, results, titles, note)
    if not as_json:
        print_results(results, chosen, runs)


def _makers(processes: list[str], vs: tuple[str, ...], *, no_fsync: bool) -> dict[str, Make]:
    """What takes turns, by name. A peer that cannot run here is left out, with a word."""
    makers: dict[str, Make] = {}
    for each in processes:
        name = "zonemta" if len(processes) == 1 else f"zonemta {each.replace('auto/auto', 'auto')}"
        makers[name] = partial(ZonemtaRelay, name=name, processes=each)
    if no_fsync:
        name = "zonemta, no fsync"
        makers[name] = partial(ZonemtaRelay, name=name, processes=processes[0], durable=False)
    for peer in vs:
        if missing := PEERS[peer].missing():
            click.echo(f"{peer} is left out: {missing}", err=True)
        else:
            makers[peer] = partial(_peer, PEERS[peer])
    return makers


def _peer(make: PeerMaker, folder: Path, sink_port: int, scenario: Scenario) -> RelayUnderTest:
    return make(folder, sink_port)


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
    able = {name: make for name, make in makers.items() if scenario.for_peers or name not in PEERS}
    found: dict[str, list[Measurement]] = {name: [] for name in able}
    total = scenario.messages * scenario.recipients * runs * len(able)
    with progress_bar(scenario.title, total) as advance:
        for _ in range(runs):
            for name, make in list(able.items()):
                try:
                    with tempfile.TemporaryDirectory(dir=directory, prefix="zonemta-bench-") as folder:
                        one = measure(scenario, Path(folder), partial(_made, make, scenario), advance)
                except LocalError as exc:
                    if name not in PEERS:
                        raise
                    click.echo(f"{name} is left out of {scenario.name}: {exc}", err=True)
                    del able[name], found[name]
                    continue
                found[name].append(one)
                every.append(one)
                if as_json:
                    print_json(one.row())
    return [_median(measurements) for measurements in found.values()]


def _made(make: Make, scenario: Scenario, folder: Path, sink_port: int) -> RelayUnderTest:
    return make(folder, sink_port, scenario)


def _median(measurements: list[Measurement]) -> Measurement:
    middle = statistics.median_low(m.per_second for m in measurements)
    return next(m for m in measurements if m.per_second == middle)
