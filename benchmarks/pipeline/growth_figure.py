"""Draws the results of ``benchmarks.pipeline.growth``: time and CPU by the size of the work, and by the executors of a cluster.

python -m benchmarks.pipeline.growth_figure results.json docs/images/pipeline-growth.png
"""

import argparse
import json
import re
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

JOBS = ("plan", "report")
UNITS = ("seconds", "CPU seconds")
NAME = re.compile(r"(\w+), (\d+) million, local(?:\[2\]|-cluster\[(\d+),.*)")


class Point(NamedTuple):
    """What a job took, by ``UNITS``; ``number``: millions of rows or events, or executors of a cluster."""

    job: str
    is_cluster: bool
    number: int
    took: tuple[float, float]


def read_points(results: Path) -> list[Point]:
    """The results of a run, the lowest numbers first. Raises ValueError for a name that is not of the benchmark."""
    points = []
    for name, values in json.loads(results.read_text()).items():
        found = NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{results}: '{name}' is no result of benchmarks.pipeline.growth")
        job, millions, executors = found.groups()
        took = values["seconds"], values["cpu_s"]
        points.append(Point(job, executors is not None, int(executors or millions), took))
    return sorted(points)


def draw(points: list[Point]) -> Figure:
    """Seconds above, CPU seconds below; one process at the left, a cluster at the right."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    grid = figure.subplots(2, 2, sharex="col")
    titles = (
        ("one process, two cores", "million rows or events"),
        ("a cluster on the same two cores, 5 million", "executors of one core"),
    )
    for column, (title, numbered) in enumerate(titles):
        grid[0][column].set_title(title, fontsize=10)
        grid[1][column].set_xlabel(numbered)
        for row, unit in enumerate(UNITS):
            axes = grid[row][column]
            for job in JOBS:
                line = [each for each in points if (each.job, each.is_cluster) == (job, bool(column))]
                places = [(each.number, each.took[row]) for each in line]
                axes.plot(*zip(*places, strict=True), marker="o", label=job)
            axes.set_xticks(sorted({each.number for each in points if each.is_cluster == bool(column)}))
            axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
            axes.grid(alpha=0.3)
            if not column:
                axes.set_ylabel(unit)
    grid[0][0].legend()
    return figure


def main() -> None:
    """Read the results of a run, write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="what --json of the benchmark has written")
    parser.add_argument("picture", type=Path, help="PNG, SVG or PDF, by its suffix")
    options = parser.parse_args()
    draw(read_points(options.results)).savefig(options.picture, dpi=110)


if __name__ == "__main__":
    main()
