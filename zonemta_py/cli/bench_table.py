"""The results of ``zonemta bench`` as a table, for a terminal."""

import platform
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

from zonemta_py.bench.charts import bars
from zonemta_py.bench.measure import Measurement
from zonemta_py.bench.scenarios import Scenario

WIDTH = 160


COLUMNS = ("scenario", "relay", "deliveries/s", "CPU ms each", "in main", "MB/s", "RssAnon MB", "fsyncs", "KB written", "p50 ms", "p99 ms", "tools CPU")  # fmt: skip


def print_results(results: list[Measurement], chosen: list[Scenario], runs: int) -> None:
    """Print the medians, and for each scenario a comparison of the first relay with each other one."""
    click.echo(f"{platform.machine()}, Python {platform.python_version()}, median of {runs} runs\n")
    titles = {scenario.name: scenario.title for scenario in chosen}
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        justify: Literal["left", "right"] = "left" if column in ("scenario", "relay") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for measurement in results:
        table.add_row(titles[measurement.scenario], *_cells(measurement))
    Console(highlight=False, width=WIDTH).print(table)
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
