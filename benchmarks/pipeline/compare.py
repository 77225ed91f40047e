"""Compares ``zonemta pipeline plan``, ``compact`` and ``report`` with other tools: complete processes, with their start.

    python -m benchmarks.pipeline.compare --rows 5000000 --events 5000000 --runs 3 --json results.json
    python -m benchmarks.pipeline.compare --work plan --suppressed 10000000 --json results.json
    python -m benchmarks.pipeline.compare --before ../earlier        # this version and another one in turns

The tools take turns, so that a slow minute affects all of them. Memory is the peak of all processes of a tool, CPU their sum,
but for the last POLL_S of each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.pipeline.data import SUPPRESSED_STEP, write_events, write_list, write_suppression
from zonemta_py.bench.process import process_tree
from zonemta_py.core.clock import monotonic_s

LETTER = b"From: News <news@sender.example>\nSubject: June\n\nhello\n"
POLL_S = 0.2
WORKS = {"plan": ("plan",), "report": ("compact", "report"), "compact": ("compact",)}  # by --work


class Measured(NamedTuple):
    """A process and its descendants: wall time, CPU of user and system, peak memory."""

    seconds: float
    cpu_s: float
    peak_mb: float


def measured(command: list[str], log: Path, tree: Path | None = None) -> Measured:
    """Run a command, by the version in ``tree``. Exits with the end of its log when it fails."""
    began_s, peak = monotonic_s(), 0
    ticks: dict[int, int] = {}
    environment = {**os.environ, "PYTHONPATH": str(tree)} if tree else None
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=tree)
        while True:
            try:
                process.wait(POLL_S)
                break
            except subprocess.TimeoutExpired:
                pids = process_tree(process.pid)
                peak = max(peak, sum(map(_rss_kb, pids)))
                ticks.update((pid, max(_cpu_ticks(pid), ticks.get(pid, 0))) for pid in pids)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed: {log.read_text(errors='replace')[-3000:]}")
    cpu_s = sum(ticks.values()) / os.sysconf("SC_CLK_TCK")
    return Measured(monotonic_s() - began_s, cpu_s, peak / 1024)


def _rss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def commands(directory: Path, run: int) -> dict[str, dict[str, list[str]]]:
    """The command of each tool, by task."""
    ours = [sys.executable, "-m", "zonemta_py", "pipeline"]
    other = [sys.executable, "-m", "benchmarks.pipeline.others"]
    listed, suppression, events = (
        str(directory / name) for name in ("list.csv", "suppressed.txt", "events")
    )
    out = str(directory / f"out-{run}")
    plan = [
        *ours,
        "plan",
        listed,
        "--message",
        str(directory / "letter.eml"),
        "--from",
        "news@sender.example",
    ]
    plan += ["--campaign", "june", "--suppress", suppression, "--output", f"{out}-plan"]
    return {
        "plan": {
            "zonemta": plan,
            # Without the archive of Java's classes (decision 101), as in the first session on a machine.
            "zonemta, first session": ["env", f"XDG_CACHE_HOME={out}-cache", *plan[:-1], f"{out}-first"],
            **{tool: [*other, tool, "plan", listed, suppression, f"{out}-{tool}.parquet"] for tool in ("duckdb", "polars", "python")},
        },
        "compact": {"zonemta": [*ours, "compact", events, "--output", f"{out}-lake"]},
        "report": {
            "zonemta": [*ours, "report", events, "--output", f"{out}-report"],
            "zonemta, compacted": [*ours, "report", f"{out}-lake/events", "--output", f"{out}-report-lake"],
            **{tool: [*other, tool, "report", events, "-", f"{out}-{tool}"] for tool in ("duckdb", "polars")},
        },
    }  # fmt: skip


def _turns(
    directory: Path, run: int, before: Path | None
) -> dict[str, dict[str, tuple[list[str], Path | None]]]:
    """The commands of a run with the tree of each, by task and tool; with ``before`` only ours, every other time in reverse."""
    if before is None:
        return {
            work: {tool: (command, None) for tool, command in tools.items()}
            for work, tools in commands(directory, run).items()
        }
    found: dict[str, dict[str, tuple[list[str], Path | None]]] = {}
    versions = {"": (run, None), ", before": (run + 1000, before)}
    for suffix, (number, tree) in list(versions.items())[:: -1 if run % 2 else 1]:
        for work, tools in commands(directory, number).items():
            ours = {tool: command for tool, command in tools.items() if tool.startswith("zonemta")}
            found.setdefault(work, {}).update(
                {f"{tool}{suffix}": (command, tree) for tool, command in ours.items()}
            )
    return found


def _line(one: Measured) -> str:
    return f"{one.seconds:.1f} s, {one.cpu_s:.1f} CPU s, {one.peak_mb:,.0f} MB"


def main() -> None:
    """Make the data, run the tools in turns, print medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument(
        "--suppressed", type=int, help="addresses that are suppressed (4 %% of the rows)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", choices=list(WORKS), help="only this")
    parser.add_argument(
        "--before",
        type=Path,
        help="a work tree of another version, compared with this one instead of other tools",
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[Measured]]] = {}
    with tempfile.TemporaryDirectory(prefix="zonemta-pipeline-") as name:
        directory = Path(name)
        write_list(directory / "list.csv", arguments.rows)
        entries = arguments.suppressed or arguments.rows // SUPPRESSED_STEP
        write_suppression(directory / "suppressed.txt", arguments.rows, entries)
        (directory / "letter.eml").write_bytes(LETTER)
        if arguments.work != "plan":
            write_events(directory / "events", arguments.events)
        for run in range(arguments.runs):
            for work, tools in _turns(directory, run, arguments.before).items():
                if arguments.work and work not in WORKS[arguments.work]:
                    continue
                for tool, (command, tree) in tools.items():
                    if tool in ("duckdb", "polars") and find_spec(tool) is None:
                        print(f"{tool} is left out: pip install {tool}")
                        continue
                    one = measured(command, directory / "log", tree)
                    found.setdefault(work, {}).setdefault(tool, []).append(one)
                    print(f"run {run + 1}: {work} by {tool}: {_line(one)}", flush=True)  # fmt: skip
    rows = [
        {"work": work, "tool": tool, "seconds": round(statistics.median(m.seconds for m in runs), 1), "cpu_s": round(statistics.median(m.cpu_s for m in runs), 1), "peak_mb": round(max(m.peak_mb for m in runs)), "runs": len(runs)}
        for work, tools in found.items()
        for tool, runs in tools.items()
    ]  # fmt: skip
    for row in rows:
        print(
            f"{row['work']:<8}{row['tool']:<20}{row['seconds']:>8} s{row['cpu_s']:>8} CPU s{row['peak_mb']:>8} MB"
        )
    if arguments.json:
        document = {
            "rows": arguments.rows,
            "events": arguments.events,
            "suppressed": entries,
            "results": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
