"""A configuration of PowerMTA, taken apart: its domains, rollups, macros and pattern lists.

Source: the PowerMTA user's guide, "Configuration directives" and "Backoff mode".
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from zonemta_py.config.providers import is_domain, is_mx_pattern
from zonemta_py.core.errors import ConfigError

_OPEN = re.compile(r"<\s*([a-z-]+)\s*([^<>]*?)\s*>\Z", re.IGNORECASE)
_CLOSE = re.compile(r"<\s*/\s*([a-z-]+)\s*>\Z", re.IGNORECASE)
_REPLY = re.compile(r"reply\s+/((?:[^/\\]|\\.)*)/([a-z]*)\s*(.*)\Z", re.IGNORECASE)
_IMPORTED = {"domain", "mx-rollup-list", "smtp-pattern-list"}
# Blocks that only a configuration of PowerMTA has.
_BLOCKS = _IMPORTED | {
    "acct-file", "bounce-category-patterns", "smtp-user", "source", "spool", "virtual-mta", "virtual-mta-pool",
}  # fmt: skip


@dataclass(slots=True)
class Domain:
    """A ``<domain>``: its directives with their lines."""

    name: str
    line: int
    values: dict[str, tuple[str, int]] = field(default_factory=dict)
    lists: list[tuple[str, int]] = field(default_factory=list)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if words and not words.startswith("#"):
            yield number, words


class PowermtaFile:
    """``leave`` is called with the number of each line that has no counterpart, and why.

    ``is_powermta``: whether a block or a macro of PowerMTA was met. ``rollups``: patterns of MX hosts by name. ``lists``: line,
    pattern and action by name. ``nested_lists``: those that domains within other blocks use, with their lines.
    """

    def __init__(self, leave: Callable[[int, str], None]) -> None:
        self._leave = leave
        self.is_powermta = False
        self.macros: dict[str, list[str]] = {}
        self.rollups: dict[str, list[str]] = {}
        self.domains: list[Domain] = []
        self.lists: dict[str, list[tuple[int, str, str]]] = {}
        self.nested_lists: list[tuple[str, int]] = []
        self._unfinished: str | None = None  # the macro whose last line ends with a comma

    def read(self, text: str, where: str) -> None:
        """Take the lines apart. Raises ConfigError for a block that does not end."""
        blocks: list[tuple[str, str, int]] = []
        for number, words in _logical_lines(text):
            plain = words if "/" in words.partition("<")[0] else words.partition(" #")[0].rstrip()
            if close := _CLOSE.match(plain):
                self.is_powermta |= close[1].lower() in _BLOCKS
                if not blocks or blocks[-1][0] != close[1].lower():
                    raise ConfigError(f"{where}:{number}: </{close[1]}> without <{close[1]}>")
                blocks.pop()
            elif opened := _OPEN.match(plain):
                blocks.append((opened[1].lower(), opened[2], number))
                self._open(blocks, number)
            else:
                self._directive(blocks, number, words)
        if blocks:
            kind, _, number = blocks[-1]
            raise ConfigError(f"{where}:{number}: <{kind}> has no </{kind}>")

    def _open(self, blocks: list[tuple[str, str, int]], number: int) -> None:
        kind, name, _ = blocks[-1]
        self._unfinished = None
        self.is_powermta |= kind in _BLOCKS
        if kind not in _IMPORTED:
            shown = f"{kind} {name}".strip()
            self._leave(number, f"<{shown}>: no counterpart, nor for what is in it")
        if kind == "domain" and len(blocks) == 1:
            self.domains.append(Domain(name.lower(), number))
        elif kind == "domain":
            outer = f"<{blocks[0][0]} {blocks[0][1]}>"
            self._leave(number, f"<domain {name}> in {outer}: limits are those of every address")
        elif kind == "smtp-pattern-list":
            self.lists.setdefault(name.lower(), [])

    def _directive(self, blocks: list[tuple[str, str, int]], number: int, words: str) -> None:
        key, _, value = words.partition(" ")
        key, value = key.lower(), value.strip()
        if key == "domain-macro":
            self.is_powermta = True
            name, _, domains = value.partition(" ")
            self._macro(name.lower(), domains, number)
            return
        if self._unfinished is not None and not blocks:
            self._macro(self._unfinished, words, number)
            return
        kind = blocks[-1][0] if blocks else ""
        if kind == "smtp-pattern-list":
            self._pattern(blocks[-1][1].lower(), number, words)
            return
        value = value.partition(" #")[0].partition("\t#")[0].strip()
        if kind == "domain" and len(blocks) == 1:
            domain = self.domains[-1]
            if key == "smtp-pattern-list":
                domain.lists.append((value.lower(), number))
            else:
                domain.values[key] = (value, number)
        elif kind == "domain" and key == "smtp-pattern-list":
            self.nested_lists.append((value.lower(), number))
        elif kind == "mx-rollup-list":
            pattern, _, name = value.lower().partition(" ")
            if key == "mx" and is_mx_pattern(pattern) and len(name.split()) == 1:
                self.rollups.setdefault(name.strip(), []).append(pattern)
            else:
                self._leave(number, f"'{words}' is not mx PATTERN NAME")
        elif key == "include":
            self._leave(number, f"include {value}: import it on its own, or put it here")
        elif not blocks:  # without its value, which may be a password
            self._leave(number, f"{key}: no counterpart")

    def _macro(self, name: str, text: str, number: int) -> None:
        """Add the domains of a line; after a comma at its end the next line has more of them."""
        text = text.partition("#")[0].strip()
        self._unfinished = name if text.endswith(",") else None
        listed = self.macros.setdefault(name, [])
        for each in (each.strip().lower() for each in text.split(",")):
            if is_domain(each):
                listed.append(each)
            elif each:
                self._leave(number, f"'{each}' is not a domain of recipients")

    def _pattern(self, name: str, number: int, words: str) -> None:
        match = _REPLY.match(words)
        if match is None:
            self._leave(number, f"'{words}' is not reply /REGEX/ ACTION")
            return
        pattern = match[1].replace("\\/", "/")
        action = match[3].partition("#")[0].strip().lower()
        self.lists[name].append((number, pattern, action))
