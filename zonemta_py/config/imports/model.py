"""The result of an import: providers and rules as plain values, and the directives without a counterpart."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zonemta_py.config.providers import DEFAULT, SMARTHOST, ProviderTable
from zonemta_py.config.shaping import LONGEST_S, MATCHES_MAX, SESSIONS_MAX
from zonemta_py.config.values import duration, rate
from zonemta_py.core.text import problem_of

MESSAGES_MAX = 1_000_000  # of a session

_NAME = re.compile(r"[^a-z0-9]+")
_RATE = re.compile(
    r"\s*([0-9,_]{1,30})\s*/\s*([0-9]{0,15})\s*(s|sec|secs|second|seconds|m|min|mins|minute|minutes|h|hr|hrs|hour|hours|d|day|days)\s*\Z"
)
_DURATION = re.compile(
    r"(\d+)\s*(ms|s|sec|secs|second|seconds|m|min|mins|minute|minutes|h|hr|hrs|hour|hours|d|day|days|w|weeks?)(?![a-z]),?\s*"
)


class LeftOut(NamedTuple):
    """A directive in ``line`` without a counterpart, or with one of another meaning; ``text`` has the reason."""

    line: int
    text: str


@dataclass(slots=True)
class Imported:
    """Providers by name and rules, in the words of ``providers.yaml`` and ``shaping.yaml``.

    ``known``: the table that the relay has anyway. A provider that it has under another name gets that one, for only one
    of two with the same hosts would be used.
    """

    known: ProviderTable
    providers: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)
    left: list[LeftOut] = field(default_factory=list)
    _given: dict[str, str] = field(default_factory=dict)  # names that were given, by those made of them

    def leave(self, line: int, text: str) -> None:
        """Remember what is not imported, once."""
        if LeftOut(line, text) not in self.left:
            self.left.append(LeftOut(line, text))

    def name_of(self, name: str, mx: list[str], domains: list[str]) -> str:
        """The name of a provider with these hosts and domains."""
        for own, each in self.known.providers.items():
            hosts = {f"*.{domain}" for domain in domains} | set(mx)
            if hosts & set(each.mx) or set(domains) & set(each.domains):
                return own
        base = _NAME.sub("_", name.lower()).strip("_") or "provider"
        if base in (DEFAULT, SMARTHOST):  # words for something else
            base = f"provider_{base}"
        unique, number = base, 1
        while self._given.setdefault(unique, name.lower()) != name.lower():
            number += 1
            unique = f"{base}_{number}"
        return unique

    def add_provider(
        self, name: str, mx: list[str], domains: list[str], limits: Mapping[str, Any], line: int
    ) -> None:
        """Add a provider, or the hosts and the lower limits of a second one of this name.

        A host that another provider has already stays with that provider.
        """
        mx, domains = self._free(name, mx, line), self._free(name, domains, line)
        if not mx and not domains and name in self.known.providers:
            known = self.known.providers[name]
            mx, domains = list(known.mx), list(known.domains)
        entry = self.providers.get(name, {})
        for key, values in (("mx", mx), ("domains", domains)):
            if values:
                entry[key] = list(dict.fromkeys([*entry.get(key, []), *values]))
        if limits:
            entry["limits"] = stricter(entry.get("limits", {}), limits)
        if entry:
            self.providers[name] = entry

    def others_of(self, name: str, mx: Collection[str], domains: Collection[str]) -> list[str]:
        """The known providers, but for ``name``, that have some of these hosts and domains."""
        wanted = {*mx, *domains}
        return [
            own
            for own, each in self.known.providers.items()
            if own != name and not wanted.isdisjoint((*each.mx, *each.domains))
        ]

    def add_parts(
        self, name: str, mx: list[str], domains: list[str], limits: Mapping[str, Any], line: int
    ) -> list[str]:
        """``add_provider``, and the limits for each known provider that has some of the hosts; returns all names."""
        others = self.others_of(name, mx, domains) if limits else []
        of_others = {
            each
            for other in others
            for each in (*self.known.providers[other].mx, *self.known.providers[other].domains)
        }
        for other in others:
            self.leave(line, f"{name}: it has hosts of {other}, which gets the same limits and rules")
            self.add_provider(other, [], [], limits, line)
        own_mx = [each for each in mx if each not in of_others]
        own_domains = [each for each in domains if each not in of_others]
        self.add_provider(name, own_mx, own_domains, limits, line)
        return [name, *others]

    def _free(self, name: str, wanted: list[str], line: int) -> list[str]:
        owners = {
            each: owner
            for owner, found in self.known.providers.items()
            for each in (*found.mx, *found.domains)
            if owner not in self.providers
        } | {
            each: owner
            for owner, found in self.providers.items()
            for each in (*found.get("mx", ()), *found.get("domains", ()))
        }
        for each in wanted:
            if owners.get(each, name) != name:
                self.leave(line, f"{each} of {name}: it belongs to the provider {owners[each]}")
        return [each for each in wanted if owners.get(each, name) == name]

    def fill_from_default(self, without: Collection[str] = ()) -> None:
        """Give each provider the limits of ``default`` that it lacks, but for those in ``without``.

        There it is the base of all domains, here it is for providers that are in no table.
        """
        base = self.providers.get(DEFAULT, {}).get("limits", {})
        for name, entry in self.providers.items():
            if base and name != DEFAULT and name not in without:
                entry["limits"] = {**base, **entry.get("limits", {})}

    def add_rule(self, name: str, rule: dict[str, Any]) -> None:
        """Add a rule under ``name``, with a number if it is taken."""
        used = {each["name"] for each in self.rules}
        base = _NAME.sub("-", name.lower()).strip("-")[:56] or "rule"
        number = 1
        while (unique := base if number == 1 else f"{base}-{number}") in used:
            number += 1
        own = {key: list(value) if isinstance(value, list) else value for key, value in rule.items()}
        self.rules.append({"name": unique, **own})

    def usable(self, patterns: list[str], line: int) -> list[str]:
        """The patterns that RE2 can use; the others are left out."""
        found = []
        for pattern in patterns:
            if problem := problem_of(pattern):
                self.leave(line, f"pattern '{pattern}': {problem}")
            else:
                found.append(pattern)
        return found


def stricter(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Both limits at once: of two numbers the lower one, of several rates those that are not implied by another one of their period."""
    found = dict(old)
    for key, value in new.items():
        if key not in found:
            found[key] = value
        elif isinstance(value, list):
            found[key] = _stricter_rates([*found[key], *value])
        else:
            found[key] = min(found[key], value)
    return found


def _stricter_rates(texts: list[str]) -> list[str]:
    lowest: dict[float, str] = {}
    for text in texts:
        events, per_s = rate(text)
        if per_s not in lowest or events < rate(lowest[per_s]).events:
            lowest[per_s] = text
    return list(lowest.values())


def rate_of(text: object) -> str | None:
    """``100/min``, ``1,000/hr``, ``5/day`` as a rate of this relay; None for anything else."""
    match = _RATE.match(text.lower()) if isinstance(text, str) else None
    count = int(re.sub(r"[,_]", "", match[1]) or 0) if match is not None else 0
    if match is None or not count or (match[2] and not int(match[2])):
        return None
    found = f"{count}/{match[2]}{match[3][0]}"
    try:
        rate(found)
    except ValueError:  # more than this relay counts
        return None
    return found


def count_of(text: object, most: int = SESSIONS_MAX) -> int | None:
    """``20``, ``1,000`` as a number from 1 to ``most``; None for anything else."""
    plain = re.sub(r"[,_]", "", str(text).strip())
    return int(plain) if re.fullmatch(r"[0-9]{1,9}", plain) and 1 <= int(plain) <= most else None


def threshold_of(text: object) -> str | None:
    """``5/hr`` as a threshold of this relay; empty for one match, which needs none; None for anything else."""
    found = rate_of(text)
    if found is None:
        return None
    count, per_s = rate(found)
    if count == 1:
        return ""
    return found if count <= MATCHES_MAX and per_s <= LONGEST_S else None


def duration_of(text: object) -> str | None:
    """``2 hours``, ``90m``, ``1h30m`` as a duration of this relay, of up to 31 days; None for anything else."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        text = f"{int(text)}s" if math.isfinite(text) else ""
    if not isinstance(text, str):
        return None
    text = text.lower().strip()
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text):
        return None
    found = "".join(number + (unit if unit == "ms" else unit[0]) for number, unit in parts)
    try:
        return found if 0 < duration(found) <= LONGEST_S else None
    except ValueError:
        return None
