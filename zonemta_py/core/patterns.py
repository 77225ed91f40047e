"""The only importer of google-re2: regular expressions that need time in proportion to the text, whatever they are.

The syntax is RE2's: no look-around, no back references. Case does not matter.
"""

from collections.abc import Sequence

import re2

MEMORY_MAX_BYTES = 64 << 20  # of the automaton of one set, which grows with the texts that it has seen


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

    Compiled by the first search: 30 ms for 300 patterns.
    """

    __slots__ = ("_is_compiled", "_set")

    def __init__(self, patterns: Sequence[str]) -> None:
        self._set = re2.Set.SearchSet(_options())
        self._is_compiled = not patterns
        for pattern in patterns:
            try:
                self._set.Add(pattern)
            except re2.error as exc:
                raise ValueError(f"pattern '{pattern}': {problem_of(pattern)}") from exc
        if not patterns:  # RE2 warns of a search in an empty set
            self._set = None

    def matches(self, text: str) -> list[int]:
        """The numbers of the patterns that ``text`` contains, in no order."""
        if self._set is None:
            return []
        if not self._is_compiled:
            self._set.Compile()
            self._is_compiled = True
        return list(self._set.Match(text) or ())
