"""Every deadline of a test scales with the machine: see tests/kit/deadlines.py."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

LITERAL = re.compile(
    r"asyncio\.timeout\(\d|wait_for\(.*, [\d.]+\)|\btimeout=\d|\.(?:join|wait)\(\d|monotonic\(\) \+ \d"
)


def test_no_deadline_is_a_literal() -> None:
    """Use ``scaled``, ``time_limit``, ``until`` or ``Deadline``."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__) and path.parent.name != "kit"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LITERAL.search(line)
    ]
    assert found == [], "\n" + "\n".join(found)
