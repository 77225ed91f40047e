"""The only importer of google-re2: regular expressions that need time in proportion to the text, whatever they are.

The syntax is RE2's: no look-around, no back references. Case does not matter.
"""

from collections.abc import Sequence

import re2

MEMORY_MAX_BYTES = 1 << 20  # of the automaton of one set, which grows with the texts that it has seen
TOGETHER = 10  # patterns in one set: of all in one, each new text costs new states of all of them


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False
    options.max_mem = MEMORY_MAX_BYTES
    return options


def problem_of(pattern: str) -> str:
    """Why ``pattern`` cannot be used; empty when it can."""
    if not pattern.strip():
        return "an empty pattern matches every text"
    try:
        compiled = re2.compile(pattern, _options())
    except re2.error as exc:
        reason = exc.args[0] if exc.args else exc
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return "it matches an empty text, so every text" if compiled.search("") else ""


class PatternSet:
    """Patterns that are searched for at once. Raises ValueError for one that cannot be used.

    Compiled by the first search: 40 ms for 400 patterns.
    """

    __slots__ = ("_are_compiled", "_sets")

    def __init__(self, patterns: Sequence[str]) -> None:
        self._sets: list[re2.Set] = []
        self._are_compiled = False
        for first in range(0, len(patterns), TOGETHER):
            found = re2.Set.SearchSet(_options())
            for pattern in patterns[first : first + TOGETHER]:
                try:
                    found.Add(pattern)
                except re2.error as exc:
                    raise ValueError(f"pattern '{pattern}': {problem_of(pattern)}") from exc
            self._sets.append(found)

    def matches(self, text: str) -> list[int]:
        """The numbers of the patterns that ``text`` contains, in no order."""
        if not self._are_compiled:
            for each in self._sets:
                each.Compile()
            self._are_compiled = True
        return [
            first * TOGETHER + number
            for first, each in enumerate(self._sets)
            for number in each.Match(text) or ()
        ]
