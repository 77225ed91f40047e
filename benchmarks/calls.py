"""Prints the calls of Python and C that a message takes, by module: ``python -m benchmarks.calls``, or a part of ``make micro``.

Counts, not times: the same in every run. A column is a scenario of ``tests/kit/call_count.py``; ``tests/meta/ceilings.txt`` has what the
tests allow. A message of ``list50`` has 50 recipients; all others have one.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.kit.call_count import NAMES, Passed, scenario

MESSAGES = 30


async def _count(name: str) -> tuple[Passed, Counter[str]]:
    with tempfile.TemporaryDirectory() as directory:
        async with scenario(name, Path(directory)) as counted:
            await counted.messages(MESSAGES)
        return counted.usual()


def main() -> None:
    """Count each scenario, and print the table."""
    found = {name: asyncio.run(_count(name)) for name in NAMES}
    modules = Counter[str]()
    for _, by_module in found.values():
        modules |= by_module  # the most of any scenario
    table = Table("calls a message, by module", box=None)
    for name in NAMES:
        table.add_column(name, justify="right")
    for module, _ in modules.most_common():
        counts = (by_module[module] for _, by_module in found.values())
        table.add_row(module, *(str(count or "") for count in counts))
    table.add_section()
    for figure in Passed._fields:
        table.add_row(figure, *(str(getattr(passed, figure)) for passed, _ in found.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
