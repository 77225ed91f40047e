"""PowerMTA's ``<domain>``, ``<mx-rollup-list>`` and ``<smtp-pattern-list>`` as providers and rules.

Steps: ``PowermtaFile`` takes the lines apart into domains, rollups, macros and pattern lists; ``_Import`` puts them together.

Invariants: nothing is dropped in silence (``Imported.leave`` has line and reason of what has no counterpart); a list without a
known provider has no rules, for they would be those of all providers.

Caller: ``zonemta import-shaping``. Example: ``<domain example.com> max-smtp-out 5 </domain>`` is a provider with 5 sessions for each address.

Source: the PowerMTA user's guide, "Configuration directives" and "Backoff mode".
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from zonemta_py.config.imports.model import (
    MESSAGES_MAX,
    Imported,
    count_of,
    duration_of,
    rate_of,
)
from zonemta_py.config.providers import ProviderTable, is_domain, is_mx_pattern
from zonemta_py.config.shaping import SESSIONS_MAX
from zonemta_py.core.errors import ConfigError

# ---- The parts of a file: domains, rollups, macros and pattern lists.
#
# Source: the PowerMTA user's guide, "Configuration directives" and "Backoff mode".

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
    """The directives of a file. ``leave`` is called with each line that has no counterpart, and the reason.

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


# ---- The import of a file.

_LIMITS = {
    "max-smtp-out": "sessions_per_address",
    "max-msg-per-connection": "messages_per_session",
    "max-msg-rate": "rate",
    "max-connect-rate": "connect_rate",
}
_OF_BACKOFF = {
    "smtp-pattern-list", "backoff-max-msg-rate", "backoff-max-smtp-out", "backoff-to-normal-after",
}  # fmt: skip
_INSTEAD = {
    "retry-after": "zones.retry.delays is for all providers",
    "backoff-retry-after": "zones.retry.delays is for all providers",
    "bounce-after": "zones.retry.give_up_after is for all providers",
    "backoff-to-normal-after-delivery": "a rule ends after its time, and not by a delivery",
    "use-starttls": "zones.tls says it",
    "require-starttls": "zones.tls says it",
    "smtp-hosts": "zones.destinations has smarthosts for a domain",
    "dkim-sign": "dkim.keys says it",
}
UNLIMITED = "unlimited"
DEFAULT_FOR = "1h"
DEFAULT_TO = "25%"

_T = TypeVar("_T")


def import_powermta(path: Path, known: ProviderTable) -> Imported:
    """The providers and rules of the file; files that it includes are imported on their own. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    found = Imported(known)
    file = PowermtaFile(found.leave)
    try:
        file.read(text, str(path))
    except ConfigError:
        if file.is_powermta:
            raise
    if not file.is_powermta:
        raise ConfigError(
            f"{path}: nothing of PowerMTA's configuration is in it: expected blocks such as <domain example.com> or "
            "<smtp-pattern-list x>, or domain-macro. --format kumomta reads TOML"
        )
    return _Import(found, file).finish()


class _Import:
    """Puts domains, lists and macros of a file together."""

    def __init__(self, found: Imported, file: PowermtaFile) -> None:
        self._found = found
        self._file = file

    def finish(self) -> Imported:
        used = {name for name, _ in self._file.nested_lists}
        for name, number in self._file.nested_lists:
            self._found.leave(number, f"smtp-pattern-list {name}: the rules of this block are left out")
        for domain in self._file.domains:
            providers = self._provider(domain)
            for name, number in domain.lists:
                used.add(name)
                if name not in self._file.lists:
                    self._found.leave(number, f"smtp-pattern-list {name} is not in this file")
                elif providers is None:  # without a provider its rules would be those of all
                    self._found.leave(
                        number,
                        f"smtp-pattern-list {name}: the rules of <domain {domain.name}> are left out",
                    )
                else:
                    self._rules(name, domain, providers)
        for name, patterns in self._file.lists.items():
            if patterns and name not in used:
                self._rules(name, Domain("*", patterns[0][0]), [])
        self._found.fill_from_default()
        return self._found

    def _provider(self, domain: Domain) -> list[str] | None:
        """Add the limits of a domain; returns what its rules have as ``provider``: none for all, None if it is not known whose they are."""
        limits = self._limits(domain)
        if domain.name == "*":
            if limits:
                self._found.add_provider("default", [], [], limits, domain.line)
            return []
        mx = self._file.rollups.get(domain.name, [])
        is_macro = domain.name.startswith("$")
        domains = self._file.macros.get(domain.name.removeprefix("$"), []) if is_macro else []
        if not mx and not domains:
            if not is_domain(domain.name) or domain.name.endswith((".rollup", ".queue")):
                self._found.leave(
                    domain.line, f"<domain {domain.name}>: nothing in this file says whose it is"
                )
                return None
            domains = [domain.name]
        short = domain.name.removeprefix("$").removesuffix(".rollup")
        name = self._found.name_of(short, mx, domains)
        if limits or domain.lists:
            return self._found.add_parts(name, mx, domains, limits, domain.line)
        return [name]

    def _limits(self, domain: Domain) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, (value, number) in domain.values.items():
            counterpart = _LIMITS.get(key)
            if counterpart is None:
                if key not in _OF_BACKOFF:
                    self._found.leave(number, f"{key} {value}: {_INSTEAD.get(key, 'no counterpart')}")
            elif counterpart in ("rate", "connect_rate"):
                rate = rate_of(value)
                if rate is not None:
                    found[counterpart] = [rate]
                elif value.lower() != UNLIMITED:
                    self._found.leave(number, f"{key} {value}: not a rate")
            else:
                most = MESSAGES_MAX if counterpart == "messages_per_session" else SESSIONS_MAX
                count = count_of(value, most)
                if count is not None:
                    found[counterpart] = count
                elif value.lower() != UNLIMITED:
                    self._found.leave(number, f"{key} {value}: not a number from 1 to {most}")
        return found

    def _rules(self, name: str, domain: Domain, providers: list[str]) -> None:
        """A rule for each action of the list ``name``, as ``domain`` uses it."""
        by_action: dict[str, list[str]] = {}
        for number, pattern, action in self._file.lists[name]:
            kind = "backoff" if "mode=backoff" in action.split(",") else action
            if kind not in ("backoff", "bounce-rcpt"):
                self._found.leave(number, f"'{action}': no counterpart")
                continue
            usable = self._found.usable([pattern], number)
            by_action.setdefault(kind, []).extend(usable)
        for kind, patterns in by_action.items():
            common = {"provider": providers} if providers else {}
            common["pattern"] = list(dict.fromkeys(patterns))
            if patterns and kind == "bounce-rcpt":
                self._found.add_rule(f"{name}-bounce", {**common, "action": "bounce"})
            elif patterns:
                for rule in self._backoff(domain):
                    self._found.add_rule(
                        f"{'-'.join([*providers, name])}-{rule['action']}", {**common, **rule}
                    )

    def _backoff(self, domain: Domain) -> Iterator[dict[str, Any]]:
        """The rules for the backoff mode of a domain."""
        for_ = self._read(
            domain, "backoff-to-normal-after", duration_of, f"the rule is for {DEFAULT_FOR}"
        )
        sessions = self._read(domain, "backoff-max-smtp-out", count_of, "sessions are not lowered")
        rate = self._read(
            domain, "backoff-max-msg-rate", rate_of, f"the rate is lowered to {DEFAULT_TO}"
        )
        given, number = domain.values.get("backoff-max-msg-rate", ("", domain.line))
        if "backoff-to-normal-after" not in domain.values:
            self._found.leave(domain.line, f"no backoff-to-normal-after: the rule is for {DEFAULT_FOR}")
        if not given and sessions is None:
            self._found.leave(
                domain.line, f"no backoff-max-msg-rate: the rate is lowered to {DEFAULT_TO}"
            )
        if given.lower() == UNLIMITED:
            if sessions is None:
                self._found.leave(number, f"backoff-max-msg-rate {given}: there is nothing to lower")
        elif rate is None and (given or sessions is None):
            rate = DEFAULT_TO
        if rate is not None:
            yield {"action": "lower_rate", "to": rate, "for": for_ or DEFAULT_FOR}
        if sessions is not None:
            yield {"action": "lower_sessions", "to": sessions, "for": for_ or DEFAULT_FOR}

    def _read(
        self, domain: Domain, key: str, read: Callable[[str], _T | None], instead: str
    ) -> _T | None:
        """The value of a directive; None without one. One that cannot be read is left out, with what is done ``instead``."""
        value, number = domain.values.get(key, ("", 0))
        found = read(value)
        if found is None and value.lower() not in ("", UNLIMITED):
            self._found.leave(number, f"{key} {value}: cannot be read; {instead}")
        return found
