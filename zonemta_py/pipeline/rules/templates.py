"""Mining the templates behind many replies: what stays the same is kept, what differs becomes ``<*>``. Pure.

Replies of one number of words that agree in most of them are one template, as in Drain (He et al.,
2017) without its tree: distinct replies that have been masked before are few thousands.
"""

import re
from collections.abc import Iterable, Iterator

WILD = "<*>"
ALIKE = 0.6  # of the words must agree
TEMPLATES_MAX = 500  # of one number of words; what comes after them joins the nearest

MASKS = (
    (r"<[^>\s]*@[^>\s]*>|[^\s<>]+@[^\s<>]+", "<address>"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}\b", "<ip>"),
    (r"https?://\S+", "<url>"),
    (r"\b(?=\w*\d)[\w-]{8,}\b", "<id>"),
    (r"\d+", "<n>"),
)  # what differs by its form alone; the same expressions for Python and for Spark
_MASKS = tuple((re.compile(pattern), stands_for) for pattern, stands_for in MASKS)


def masked(reply: str) -> str:
    """``reply`` without addresses, ids and numbers."""
    for pattern, stands_for in _MASKS:
        reply = pattern.sub(stands_for, reply)
    return reply


class Templates:
    """The templates found so far; ``add`` the most frequent replies first."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[list[str]]] = {}

    def add(self, kind: str) -> None:
        """Take a masked reply into the template it is most like, or make one."""
        words = kind.split()
        known = self._by_length.setdefault(len(words), [])
        nearest = max(known, key=lambda each: _alike(each, words), default=None)
        if nearest is None or (_alike(nearest, words) < ALIKE and len(known) < TEMPLATES_MAX):
            known.append(words)
            return
        nearest[:] = [a if a == b else WILD for a, b in zip(nearest, words, strict=True)]

    def of(self, kind: str) -> str:
        """The template of a masked reply; itself when none was found for it."""
        words = kind.split()
        known = self._by_length.get(len(words), [])
        nearest = max(known, key=lambda each: _alike(each, words), default=words)
        return " ".join(nearest)

    def __iter__(self) -> Iterator[str]:
        return (" ".join(words) for known in self._by_length.values() for words in known)


def mined(kinds: Iterable[str]) -> dict[str, str]:
    """The template of each of ``kinds``, which come the most frequent first."""
    found, seen = Templates(), list(kinds)
    for kind in seen:
        found.add(kind)
    return {kind: found.of(kind) for kind in seen}


def _alike(template: list[str], words: list[str]) -> float:
    """Which part of the words agrees; a place that is wild agrees by half, so that exact ones win."""
    if not words:
        return 1.0
    points = sum(
        1.0 if a == b else 0.5 if a == WILD else 0.0 for a, b in zip(template, words, strict=True)
    )
    return points / len(words)
