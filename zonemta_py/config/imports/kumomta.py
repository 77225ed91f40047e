"""KumoMTA's ``shaping.toml`` as providers and rules.

Steps: TOML is parsed, and the line of each key is found; each table becomes a provider or a rule (``_Import``); providers that
inherit from ``default`` get its limits.

Invariants: nothing is dropped in silence (``Imported.leave`` has line and reason of what has no counterpart); of two limits for the same
provider the stricter one counts.

Caller: ``zonemta import-shaping``. Example: ``["example.com"] max_message_rate = "100/min"`` is a provider with ``rate: 100/m``.

Source: docs.kumomta.com, "Configuring Traffic Shaping" and ``kumo.make_egress_path``; the crate kumo-api-types, shaping.rs.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zonemta_py.config.imports.model import (
    MESSAGES_MAX,
    Imported,
    count_of,
    duration_of,
    rate_of,
    stricter,
    threshold_of,
)
from zonemta_py.config.providers import ProviderTable, is_domain, is_mx_pattern
from zonemta_py.config.shaping import ABOUT_SENDING, SESSIONS_MAX
from zonemta_py.core.errors import ConfigError

_HEADER = re.compile(r"\s*(\[\[?.+\]\]?)\s*(?:#.*)?\Z")
_KEY = re.compile(r"\s*(?:\"([^\"]+)\"|'([^']+)'|([\w-]+))\s*=")
_SILENT = {"match", "mx_rollup", "automation", "replace_base", "sources"}
# Limits of each source address. Those of a provider hold there in addition to those of each of its sites; here a provider has one.
_LIMITS = {
    "connection_limit": "sessions_per_address",
    "provider_connection_limit": "sessions_per_address",
    "max_deliveries_per_connection": "messages_per_session",
    "max_connection_rate": "connect_rate",
    "provider_max_connection_rate": "connect_rate",
    "max_message_rate": "rate",
    "provider_max_message_rate": "rate",
}
_INSTEAD = {
    "enable_tls": "zones.tls says it",
    "idle_timeout": "zones.timeouts.idle is for all providers",
    "mx_list": "zones.destinations has smarthosts for a domain",
    "smtp_port": "zones.port says it",
    "prohibited_hosts": "private addresses are refused anyway, see allow_private_destinations",
}


def import_kumomta(path: Path, known: ProviderTable) -> Imported:
    """The providers and rules of the file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    run = _Import(Imported(known), _lines(text))
    found = run.run(document)
    if not run.is_shaping:
        raise ConfigError(
            f'{path}: nothing of KumoMTA\'s shaping is in it: expected tables such as [provider."x"], ["example.com"] or '
            '["default"]'
        )
    return found


def _lines(text: str) -> dict[tuple[str, ...], list[int]]:
    """The lines of each table and key, by path: those of a list of tables have several."""
    found: dict[tuple[str, ...], list[int]] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _path_of(header[1]) or table
            found.setdefault(table, []).append(number)
        elif key := _KEY.match(line):
            found.setdefault((*table, key[1] or key[2] or key[3]), []).append(number)
    return found


def _path_of(header: str) -> tuple[str, ...]:
    """The keys of a header such as ``[["x.example".automation]]``; none if it is a part of a value."""
    try:
        inner: Any = tomllib.loads(header)
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while inner:
        if isinstance(inner, list):
            inner = inner[0]
            continue
        key, inner = next(iter(inner.items()))
        path.append(key)
    return tuple(path)


class _Import:
    """The state of one import."""

    def __init__(self, found: Imported, lines: Mapping[tuple[str, ...], list[int]]) -> None:
        self._found = found
        self._lines = lines
        self.is_shaping = False  # whether a table of KumoMTA was met
        self._without_base: set[str] = set()  # providers that do not inherit from its default

    def run(self, document: Mapping[str, Any]) -> Imported:
        for name, table in document.items():
            if name == "provider" and isinstance(table, dict):
                for provider, settings in table.items():
                    if isinstance(settings, dict):
                        self.is_shaping = True
                        self._provider(("provider", provider), settings)
                    else:
                        self._leave(("provider", provider), f"{provider}: not a provider")
            elif isinstance(table, dict):
                self._domain(name, table)
            else:
                self._leave((name,), f"{name}: not a domain or provider")
        self._found.fill_from_default(self._without_base)
        return self._found

    def _leave(self, path: tuple[str, ...], text: str) -> None:
        self._found.leave(self._line(path), text)

    def _line(self, path: tuple[str, ...], number: int = 0) -> int:
        lines = self._lines.get(path) or self._below(path) or self._lines.get(path[:-1]) or [1]
        return lines[min(number, len(lines) - 1)]

    def _below(self, path: tuple[str, ...]) -> list[int]:
        """The lines of what is under ``path``, for a table that has no header of its own."""
        return next((lines for each, lines in self._lines.items() if each[: len(path)] == path), [])

    def _provider(self, path: tuple[str, ...], settings: Mapping[str, Any]) -> None:
        mx, domains = self._matches(path, settings)
        name = self._found.name_of(path[1], mx, domains)
        other = self._found.known.of_domain(f"{path[1].lower()}.com")
        if other and not mx and name not in self._found.known.providers:
            self._leave(path, f"provider {path[1]}: no match; its name is taken for {other}")
            name = other
        limits = self._limits(path, settings)
        is_known = name in self._found.known.providers or name in self._found.providers
        names = [name]
        if mx or domains or (limits and is_known):
            names = self._found.add_parts(name, mx, domains, limits, self._line(path))
        elif limits:
            self._leave(path, f"provider {path[1]}: no match, and no provider of this name is known")
        if settings.get("replace_base"):
            self._without_base.update(names)
        if name in self._found.known.providers or name in self._found.providers:
            self._rules(path, settings, names)
        elif "automation" in settings:
            self._leave(path, f"provider {path[1]} is in no table: its rules are left out")

    def _matches(
        self, path: tuple[str, ...], settings: Mapping[str, Any]
    ) -> tuple[list[str], list[str]]:
        """Patterns of hosts, and domains."""
        mx: list[str] = []
        for each in _tables(settings.get("match", [])):
            if each is None:
                self._leave((*path, "match"), "match: not a table of names")
                continue
            for kind, value in each.items():
                pattern = str(value).lower().rstrip(".")
                if kind == "MXSuffix":
                    pattern = ("*" if pattern.startswith(".") else "*.") + pattern
                if kind in ("MXSuffix", "HostName") and is_mx_pattern(pattern):
                    mx.append(pattern)
                else:
                    self._leave(
                        (*path, "match"), f"match {kind} '{value}': only names of hosts are matched"
                    )
        return mx, []

    def _domain(self, domain: str, settings: Mapping[str, Any]) -> None:
        path = (domain,)
        if domain == "default":
            self.is_shaping = True
            limits = self._limits(path, settings)
            if limits:
                self._found.add_provider("default", [], [], limits, self._line(path))
            self._rules(path, settings, [])
            return
        if "." not in domain or not is_domain(domain.lower()) or domain.endswith(".internal"):
            self._leave(path, f"{domain} is not a domain of recipients")
            return
        self.is_shaping = True
        limits = self._limits(path, settings)
        name = self._found.name_of(domain, [], [domain.lower()])
        if settings.get("replace_base"):
            self._without_base.add(name)
        if limits:
            own = name in self._found.known.providers
            self._found.add_provider(name, [], [] if own else [domain.lower()], limits, self._line(path))
            if settings.get("mx_rollup", True) and not own:
                self._leave(path, f"{domain}: other domains with its MX hosts need mx, its hosts")
        self._rules(
            path, settings, [name if limits or name in self._found.known.providers else domain.lower()]
        )

    def _limits(self, path: tuple[str, ...], settings: Mapping[str, Any]) -> dict[str, Any]:
        sources = settings.get("sources", {})
        if not isinstance(sources, dict):
            self._leave((*path, "sources"), f"sources = {sources!r}: not a table of sources")
            sources = {}
        for source in sources:
            self._leave(
                (*path, "sources", source), f"source {source}: limits are those of every address"
            )
        found: dict[str, Any] = {}
        for key, value in settings.items():
            if key in _SILENT:
                continue
            counterpart = _LIMITS.get(key)
            limit = None if counterpart is None else _limit(counterpart, value)
            if limit is None:
                self._leave((*path, key), f"{key} = {value!r}: {_INSTEAD.get(key, 'no counterpart')}")
        for key, counterpart in _LIMITS.items():
            limit = _limit(counterpart, settings[key]) if key in settings else None
            if limit is None:
                continue
            if counterpart in found:
                first = next(each for each in _LIMITS if _LIMITS[each] == counterpart)
                self._leave(
                    (*path, key),
                    f"{key} = {settings[key]!r} and {first} = {settings[first]!r}: the stricter one is used",
                )
            found = stricter(found, {counterpart: limit})
        return found

    def _rules(self, path: tuple[str, ...], settings: Mapping[str, Any], providers: list[str]) -> None:
        for number, entry in enumerate(_tables(settings.get("automation", []))):
            line = self._line((*path, "automation"), number)
            if entry is None:
                self._found.leave(line, "automation: not a table of rules")
                continue
            regex = entry.get("regex", [])
            given = regex if isinstance(regex, list) else [regex]
            texts = [each for each in given if isinstance(each, str)]
            if len(texts) < len(given):
                self._found.leave(line, f"regex = {regex!r}: not a text")
            patterns = self._found.usable([_bare(each) for each in texts], line)
            common: dict[str, Any] = {"provider": providers} if providers else {}
            if not patterns:
                continue
            common["pattern"] = patterns
            trigger = entry.get("trigger", "Immediate")
            if isinstance(trigger, dict):
                threshold = threshold_of(trigger.get("Threshold"))
                if threshold is None:
                    self._found.leave(
                        line, f"trigger {trigger}: not a threshold; its rules are left out"
                    )
                    continue
                if threshold:
                    common["threshold"] = threshold
            actions = entry.get("action", "Suspend")
            for action in actions if isinstance(actions, list) else [actions]:
                rule = self._action(action, duration_of(entry.get("duration")), line)
                if rule is not None and "threshold" in common and rule["action"] not in ABOUT_SENDING:
                    self._found.leave(line, f"action {action} with a threshold: no counterpart")
                elif rule is not None:
                    self._found.add_rule(
                        f"{(providers or ['all'])[0]}-{rule['action']}", {**common, **rule}
                    )

    def _action(self, action: Any, for_: str | None, line: int) -> dict[str, Any] | None:
        if action == "Bounce":
            self._found.leave(line, "action Bounce: only the recipient of the reply bounces")
            return {"action": "bounce"}
        if for_ is None:
            self._found.leave(line, f"action {action}: no duration that can be read, of up to 31d")
            return None
        if action == "Suspend":
            return {"action": "suspend", "for": for_}
        config = action.get("SetConfig") if isinstance(action, dict) else None
        if isinstance(config, dict):
            name, value = config.get("name"), config.get("value")
            rates = _limit("rate", value) if _LIMITS.get(str(name)) == "rate" else None
            if rates:
                return {"action": "lower_rate", "to": rates[0], "for": for_}
            sessions = name in ("connection_limit", "provider_connection_limit")
            if sessions and _limit("sessions_per_address", value):
                return {
                    "action": "lower_sessions",
                    "to": _limit("sessions_per_address", value),
                    "for": for_,
                }
        self._found.leave(line, f"action {action}: no counterpart")
        return None


def _tables(value: Any) -> list[dict[str, Any] | None]:
    """The tables of a list; None for each item that is not a table."""
    values = value if isinstance(value, list) else [value]
    return [each if isinstance(each, dict) else None for each in values]


def _bare(pattern: str) -> str:
    """``pattern`` without the slashes around it, which are not part of a reply."""
    return pattern[1:-1] if len(pattern) > 2 and pattern[0] == pattern[-1] == "/" else pattern


def _limit(counterpart: str, value: Any) -> Any:
    """A limit of this relay; None if the value cannot be one. ``local:`` limits of one process are the same here."""
    text = str(value).removeprefix("local:").strip()
    if counterpart in ("rate", "connect_rate"):
        found = rate_of(text)
        return [found] if found else None
    return count_of(text, MESSAGES_MAX if counterpart == "messages_per_session" else SESSIONS_MAX)
