"""What the fields of a configuration are made with: closed sets of words, bounded numbers."""

from dataclasses import field
from typing import Any

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


def choice(default: str, *others: str, later: tuple[str, ...] = ()) -> Any:
    """A closed set of words; ``later`` names those that this version refuses."""
    return field(default=default, metadata={"choices": (default, *others), "later": later})


def hidden(default: str) -> Any:
    """Not a key: filled in by the reader."""
    return field(default=default, metadata={"hidden": True}, compare=False, repr=False)


def number(default: int, least: int = 1, most: int = 10**9) -> Any:
    """A whole number from ``least`` to ``most``."""
    return field(default=default, metadata={"least": least, "most": most})
