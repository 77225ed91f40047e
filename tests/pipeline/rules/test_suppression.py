"""Suppression files."""

from datetime import date
from pathlib import Path

import pytest

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.suppression import SuppressionList, read_suppression


def test_a_suppression_file(tmp_path: Path) -> None:
    """Addresses and domains are normalised; bad lines are counted and ignored."""
    path = tmp_path / "s.txt"
    path.write_text(
        "# comment\n\nA@EXAMPLE.org, bounced\n@Spam.example\nbücher.example\tasked\nnot an address\n"
        "a@example.org,again # another address: local parts are case-sensitive\n"
    )
    found = read_suppression([path])
    assert found.entries == {
        "A@example.org": "bounced",
        "spam.example": "suppressed",
        "xn--bcher-kva.example": "asked",
        "a@example.org": "again",
    }
    assert found.bad == 1
    assert "s.txt:6: 'not an address'" in found.bad_lines[0]
    with pytest.raises(LocalError, match="nothing-here"):
        read_suppression([tmp_path / "nothing-here"])


def test_a_line_that_expired(tmp_path: Path) -> None:
    """A line applies on its last day, and not on the day after."""
    path = tmp_path / "s.txt"
    path.write_text("a@x.example, bounced, on monday, until 2026-11-20\nb@x.example, until 2026-11-21\n")
    found = SuppressionList(date(2026, 11, 21))
    for line in path.read_text().splitlines():
        found.add(line, "s.txt")
    assert (found.entries, found.expired) == ({"b@x.example": "suppressed"}, 1)
    assert read_suppression([path]).bad == 0
