"""PowerMTA's ``<domain>``, ``<mx-rollup-list>`` and ``<smtp-pattern-list>`` as providers and rules.

Source: the PowerMTA user's guide, "Configuration directives" and "Backoff mode".
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zonemta_py.config.imports.model import Imported, duration_of, rate_of
from zonemta_py.config.providers import ProviderTable
from zonemta_py.core.errors import ConfigError

_OPEN = re.compile(r"<\s*([a-z-]+)\s*([^<>]*?)\s*>\Z", re.IGNORECASE)
_CLOSE = re.compile(r"<\s*/\s*([a-z-]+)\s*>\Z", re.IGNORECASE)
_REPLY = re.compile(r"reply\s+/((?:[^/\\]|\\.)*)/([a-z]*)\s*(.*)\Z", re.IGNORECASE)
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
    "retry-after": "zones.NAME.retry.delays is for all providers",
    "backoff-retry-after": "zones.NAME.retry.delays is for all providers",
    "bounce-after": "zones.NAME.retry.give_up_after is for all providers",
    "backoff-to-normal-after-delivery": "a rule ends after its time, and not by a delivery",
    "use-starttls": "zones.NAME.tls says it",
    "require-starttls": "zones.NAME.tls says it",
    "smtp-hosts": "zones.NAME.destinations has smarthosts for a domain",
    "dkim-sign": "dkim.keys says it",
}
DEFAULT_FOR = "1h"
DEFAULT_TO = "25%"


@dataclass(slots=True)
class _Domain:
    """A ``<domain>``: its directives with their lines."""

    name: str
    line: int
    values: dict[str, tuple[str, int]] = field(default_factory=dict)
    lists: list[tuple[str, int]] = field(default_factory=list)


def import_powermta(path: Path, known: ProviderTable) -> Imported:
    """What the file says; files that it includes are imported on their own. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    run = _Import(Imported(known))
    run.read(text, str(path))
    return run.finish()


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if words and not words.startswith("#"):
            yield number, words


class _Import:
    """One run: reads all lines, then puts domains, lists and macros together."""

    def __init__(self, found: Imported) -> None:
        self._found = found
        self._macros: dict[str, list[str]] = {}
        self._rollups: dict[str, list[str]] = {}
        self._domains: list[_Domain] = []
        self._lists: dict[str, list[tuple[int, str, str]]] = {}  # line, pattern, what to do

    def read(self, text: str, where: str) -> None:
        """Take the lines apart. Raises ConfigError for a block that does not end."""
        blocks: list[tuple[str, str, int]] = []
        for number, words in _logical_lines(text):
            plain = words if "/" in words.partition("<")[0] else words.partition(" #")[0].rstrip()
            if close := _CLOSE.match(plain):
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
        if kind == "domain" and len(blocks) == 1:
            self._domains.append(_Domain(name.lower(), number))
        elif kind == "domain":
            outer = f"<{blocks[0][0]} {blocks[0][1]}>"
            self._found.leave(number, f"<domain {name}> in {outer}: limits are those of every address")
        elif kind == "smtp-pattern-list":
            self._lists.setdefault(name.lower(), [])

    def _directive(self, blocks: list[tuple[str, str, int]], number: int, words: str) -> None:
        key, _, value = words.partition(" ")
        key, value = key.lower(), value.strip()
        kind = blocks[-1][0] if blocks else ""
        if kind == "smtp-pattern-list":
            self._pattern(blocks[-1][1].lower(), number, words)
            return
        value = value.partition(" #")[0].partition("\t#")[0].strip()
        if kind == "domain" and len(blocks) == 1:
            domain = self._domains[-1]
            if key == "smtp-pattern-list":
                domain.lists.append((value.lower(), number))
            else:
                domain.values[key] = (value, number)
        elif kind == "mx-rollup-list" and key == "mx" and len(value.split()) == 2:
            pattern, name = value.lower().split()
            self._rollups.setdefault(name, []).append(pattern)
        elif key == "domain-macro":
            name, _, domains = value.partition(" ")
            listed = [each.strip().lower() for each in domains.split(",") if each.strip()]
            self._macros.setdefault(name.lower(), []).extend(listed)
        elif key == "include":
            self._found.leave(number, f"include {value}: import it on its own, or put it here")

    def _pattern(self, name: str, number: int, words: str) -> None:
        match = _REPLY.match(words)
        if match is None:
            self._found.leave(number, f"'{words}' is not reply /REGEX/ ACTION")
            return
        pattern = match[1].replace("\\/", "/")
        action = match[3].partition("#")[0].strip().lower()
        self._lists[name].append((number, pattern, action))

    def finish(self) -> Imported:
        """Providers and rules."""
        used: set[str] = set()
        for domain in self._domains:
            providers = self._provider(domain)
            for name, number in domain.lists:
                used.add(name)
                if name not in self._lists:
                    self._found.leave(number, f"smtp-pattern-list {name} is not in this file")
                else:
                    self._rules(name, domain, providers)
        for name in self._lists:
            if name not in used:
                self._rules(name, _Domain("*", 0), [])
        return self._found

    def _provider(self, domain: _Domain) -> list[str]:
        """Add the limits of a domain; returns what its rules have as ``provider``."""
        limits = self._limits(domain)
        if domain.name == "*":
            if limits:
                self._found.add_provider("default", [], [], limits)
            return []
        mx = self._rollups.get(domain.name, [])
        domains = self._macros.get(domain.name.removeprefix("$"), []) if domain.name[0] == "$" else []
        if not mx and not domains:
            if (
                domain.name[0] == "$"
                or "/" in domain.name
                or domain.name.endswith((".rollup", ".queue"))
            ):
                self._found.leave(
                    domain.line, f"<domain {domain.name}>: nothing in this file says whose it is"
                )
                return []
            domains = [domain.name]
        short = domain.name.removeprefix("$").removesuffix(".rollup")
        name = self._found.name_of(short, mx, domains)
        if limits or domain.lists:
            self._found.add_provider(name, mx, domains, limits)
        return [name]

    def _limits(self, domain: _Domain) -> dict[str, Any]:
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
                elif value.lower() != "unlimited":
                    self._found.leave(number, f"{key} {value}: not a rate")
            elif value.isascii() and value.isdigit() and int(value):
                found[counterpart] = int(value)
            elif value.lower() not in ("unlimited", "0"):
                self._found.leave(number, f"{key} {value}: not a number")
        return found

    def _rules(self, name: str, domain: _Domain, providers: list[str]) -> None:
        """A rule for each action of the list ``name``, as ``domain`` uses it."""
        by_action: dict[str, list[str]] = {}
        for number, pattern, action in self._lists[name]:
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

    def _backoff(self, domain: _Domain) -> Iterator[dict[str, Any]]:
        """What backoff mode means for a domain."""
        value, number = domain.values.get("backoff-to-normal-after", ("", domain.line))
        for_ = duration_of(value) or DEFAULT_FOR
        rate = rate_of(domain.values.get("backoff-max-msg-rate", ("", 0))[0])
        sessions = domain.values.get("backoff-max-smtp-out", ("", 0))[0]
        if not value:
            self._found.leave(number, f"no backoff-to-normal-after: the rule is for {for_}")
        if rate is None and not sessions.isdigit():
            self._found.leave(number, f"no backoff-max-msg-rate: the rate is lowered to {DEFAULT_TO}")
            rate = DEFAULT_TO
        if rate is not None:
            yield {"action": "lower_rate", "to": rate, "for": for_}
        if sessions.isdigit() and int(sessions):
            yield {"action": "lower_sessions", "to": int(sessions), "for": for_}
