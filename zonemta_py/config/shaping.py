"""Shaping rules: changes of limits and routes because of a provider's replies. Values are frozen.

    rules:
      - {name: google-blocked, provider: google, class: [blocked], threshold: 5/1h, action: suspend, for: 2h}

``docs/deliverability.md`` describes the keys. The relay ships ``config/shaping.yaml``; rules of a user's file come first, and one
with the name of a shipped rule replaces it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zonemta_py.config.load import read_document, shipped_file
from zonemta_py.config.providers import NAME, SMARTHOST, ProviderTable
from zonemta_py.config.reader import Reader
from zonemta_py.config.values import DAY, Percent, Rate, Seconds, Threshold, Word, percent, rate
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import PatternSet, meant, problem_of
from zonemta_py.smtp.reply_class import ReplyClass, plain_words, searched

SHIPPED = "shaping.yaml"
LONGEST_S = 31 * DAY  # of ``for`` and of the window of a threshold
MATCHES_MAX = 10_000
SESSIONS_MAX = 100_000
# What an action needs, and what it may have besides name, provider, class, pattern, threshold and action.
NEEDS = {
    "suspend": ("for",),
    "lower_rate": ("to", "for"),
    "lower_sessions": ("to", "for"),
    "pool": ("pool", "for"),
    "hold": (),
    "bounce": (),
    "defer": (),
    "retry": ("delays",),
    "not_counted": (),
    "ignore": (),
}
# Actions about all mail from an address to a provider; the others are about the recipient of the reply, each at once.
ABOUT_SENDING = ("suspend", "lower_rate", "lower_sessions", "pool")
_CLASSES: tuple[str, ...] = tuple(ReplyClass)


class ShapingTarget(NamedTuple):
    """The target of a lowered ceiling: per cent of it, a number of sessions, or a rate. One of the three is set."""

    percent: Percent | None = None
    sessions: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class ShapingRule:
    """One rule. An empty list of providers, classes or patterns means any.

    ``threshold_count`` matches in ``threshold_s`` seconds (0: at once) cause ``action``, for ``for_s`` seconds.
    ``where``: file, line and key.
    """

    name: str
    providers: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    threshold_count: int = 1
    threshold_s: float = 0.0
    action: str = "not_counted"
    for_s: float = 0.0
    to: ShapingTarget | None = None
    pool: str | None = None
    delays_s: tuple[float, ...] = ()
    where: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ShapingEntry:
    """One rule as a file has it."""

    name: str | None = None
    provider: tuple[Word, ...] = ()
    class_: tuple[Word, ...] = ()
    pattern: tuple[Word, ...] = ()
    threshold: Threshold | None = None
    action: str | None = None
    for_: Seconds | None = None
    to: Word | None = None
    pool: str | None = None
    delays: tuple[Seconds, ...] = ()


@dataclass(frozen=True, slots=True)
class ShapingFile:
    """A whole file."""

    rules: tuple[ShapingEntry, ...] = ()


class ShapingRules:
    """Finds the rules that a reply matches. Pure. Raises ValueError for a bad pattern."""

    def __init__(self, rules: Sequence[ShapingRule]) -> None:
        self.rules = tuple(rules)
        self._owners = [n for n, rule in enumerate(self.rules) for _ in rule.patterns]
        self._patterns = PatternSet([each for rule in self.rules for each in rule.patterns])

    def matching(
        self, provider: str, reply_class: str, code: int, status: str, text: str, domain: str = ""
    ) -> list[ShapingRule]:
        """The rules for a reply of ``provider`` (or of the recipient domain ``domain``), in their order.

        Patterns are searched as those of classification are: in ``CODE STATUS TEXT`` without URLs and addresses, and
        in the whole of it.
        """
        about = [
            n for n, rule in enumerate(self.rules) if _is_about(rule, provider, domain, reply_class)
        ]
        if not any(self.rules[n].patterns for n in about):
            return [self.rules[n] for n in about]
        whole = searched(code, status, text)
        texts = {whole, plain_words(whole)}
        found = {self._owners[n] for each in texts for n in self._patterns.matches(each)}
        return [self.rules[n] for n in about if not self.rules[n].patterns or n in found]


def _is_about(rule: ShapingRule, provider: str, domain: str, reply_class: str) -> bool:
    if rule.classes and reply_class not in rule.classes:
        return False
    return not rule.providers or provider in rule.providers or domain in rule.providers


def load_shaping(file: Path | None, *, shipped: bool) -> ShapingRules:
    """The rules: those of ``file``, then the shipped ones whose names it does not use. Raises ConfigError."""
    own = read_shaping(file) if file is not None else []
    used = {rule.name for rule in own}
    others = _shipped() if shipped else ()
    return ShapingRules([*own, *(rule for rule in others if rule.name not in used)])


@cache
def _shipped() -> Sequence[ShapingRule]:
    """Read once: the file is a part of this version (decision 148)."""
    return read_shaping(shipped_file(SHIPPED))


def read_shaping(path: Path) -> list[ShapingRule]:
    """The rules of a file. Raises ConfigError with file, line and key."""
    found, reader = read_document(path, ShapingFile)
    rules: dict[str, ShapingRule] = {}
    for number, entry in enumerate(found.rules):
        key = f"rules[{number}]"
        rule = _rule(entry, key, reader)
        if rule.name in rules:
            reader.complain(f"{key}.name", f"'{rule.name}' is the name of an earlier rule too")
        rules[rule.name] = rule
    return list(rules.values())


def check_pools(rules: ShapingRules, pools: Sequence[str]) -> None:
    """Raises ConfigError for a rule whose pool is not one of ``pools``."""
    for rule in rules.rules:
        if rule.pool is not None and rule.pool not in pools:
            raise ConfigError(f"{rule.where}.pool: found '{rule.pool}'; {meant(rule.pool, pools)}")


def check_rule_providers(rules: ShapingRules, table: ProviderTable) -> None:
    """Raises ConfigError for a rule of the user's that names a provider which no mail is for."""
    shipped = f"{shipped_file(SHIPPED)}:"
    for rule in rules.rules:
        for name in rule.providers if not rule.where.startswith(shipped) else ():
            if problem := table.problem_of(name):
                raise ConfigError(f"{rule.where}.provider: {problem}")


def _rule(entry: ShapingEntry, key: str, reader: Reader) -> ShapingRule:
    if entry.name is None or not NAME.match(entry.name):
        reader.complain(f"{key}.name", "a name is needed: lower-case letters, digits, '_', '.' and '-'")
    for each in entry.class_:
        if each not in _CLASSES:
            reader.complain(f"{key}.class", f"found '{each}', allowed: {', '.join(_CLASSES)}")
    for pattern in entry.pattern:
        if problem := problem_of(pattern):
            reader.complain(f"{key}.pattern", f"'{pattern}' is no pattern of RE2: {problem}")
    if not entry.class_ and not entry.pattern:
        reader.complain(key, "a class or a pattern is needed")
    for name in entry.provider:
        if name != name.lower():
            reader.complain(f"{key}.provider", f"found '{name}', expected lower case")
    action = _action(entry, key, reader)
    if SMARTHOST in entry.provider and action in ABOUT_SENDING:
        others = ", ".join(each for each in NEEDS if each not in ABOUT_SENDING)
        reader.complain(
            f"{key}.action",
            f"found '{action}': nothing limits mail to a smarthost; rules for it may say {others}",
        )
    rule = ShapingRule(
        entry.name,
        tuple(entry.provider),
        tuple(entry.class_),
        tuple(entry.pattern),
        action=action,
        for_s=entry.for_ or 0.0,
        to=_target(entry, key, reader),
        pool=entry.pool,
        delays_s=tuple(entry.delays),
        where=f"{reader.path}:{reader.line_of(key)}: {key}",
    )
    if entry.threshold is None:
        return rule
    if action not in ABOUT_SENDING:
        reader.complain(
            f"{key}.threshold",
            f"action {action} has no threshold: it is about the recipient of each reply",
        )
    count, per_s = entry.threshold
    if not 2 <= count <= MATCHES_MAX or per_s > LONGEST_S:
        reader.complain(
            f"{key}.threshold",
            f"expected a number of matches in a time such as 5/10m: 2 to {MATCHES_MAX} in up to 31d; absent: at once",
        )
    return replace(rule, threshold_count=count, threshold_s=per_s)


def _action(entry: ShapingEntry, key: str, reader: Reader) -> str:
    """The action; every key that it needs is there, and no other one."""
    if entry.action is None:
        reader.complain(f"{key}.action", f"an action is needed: {', '.join(NEEDS)}")
    if entry.action not in NEEDS:
        reader.complain(f"{key}.action", f"found '{entry.action}', allowed: {', '.join(NEEDS)}")
    needed = NEEDS[entry.action]
    given = {"for": entry.for_, "to": entry.to, "pool": entry.pool, "delays": entry.delays or None}
    for name, value in given.items():
        if value is None and name in needed:
            reader.complain(key, f"action {entry.action} needs {name}")
        if value is not None and name not in needed:
            reader.complain(f"{key}.{name}", f"action {entry.action} has no {name}")
    if entry.for_ is not None and not 0 < entry.for_ <= LONGEST_S:
        reader.complain(f"{key}.for", "expected a duration of more than 0s, up to 31d")
    if any(each <= 0 for each in entry.delays):
        reader.complain(f"{key}.delays", "expected durations of more than 0s")
    return entry.action


def _target(entry: ShapingEntry, key: str, reader: Reader) -> ShapingTarget | None:
    """``to``: 50 % of the ceiling, sessions, or a rate."""
    if entry.to is None:
        return None
    is_rate = entry.action == "lower_rate"
    try:
        if entry.to.endswith("%"):
            found = percent(entry.to)
            if 1 <= found <= 99:
                return ShapingTarget(percent=found)
        elif is_rate:
            return ShapingTarget(rate=rate(entry.to))
        elif entry.to.isascii() and entry.to.isdigit() and 1 <= int(entry.to) <= SESSIONS_MAX:
            return ShapingTarget(sessions=int(entry.to))
    except ValueError:
        pass
    other = "a rate such as 60/m" if is_rate else f"a number of sessions from 1 to {SESSIONS_MAX}"
    reader.complain(f"{key}.to", f"found '{entry.to}', expected 1% to 99% of the ceiling, or {other}")
