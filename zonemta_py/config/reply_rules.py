"""Files of classification rules: the shipped one and the user's, as ``ReplyRule`` values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from zonemta_py.config.load import read_document
from zonemta_py.config.reader import Reader
from zonemta_py.config.shipped import shipped_file
from zonemta_py.config.units import Word
from zonemta_py.core.patterns import problem_of
from zonemta_py.smtp.classification import (
    UNKNOWN,
    ReplyClass,
    ReplyClassifier,
    ReplyRule,
    is_code_pattern,
    is_status_pattern,
)
from zonemta_py.smtp.classify import Phase

SHIPPED = shipped_file("classify.yaml")
_CLASSES = tuple(ReplyClass)
_PHASES = (*(each.value for each in Phase), UNKNOWN)


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One rule as a file has it."""

    class_: str | None = None
    pattern: tuple[Word, ...] = ()
    code: tuple[Word, ...] = ()
    status: tuple[Word, ...] = ()
    phase: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class RulesFile:
    """A whole file."""

    rules: tuple[RuleEntry, ...] = ()


def load_rules(path: Path) -> list[ReplyRule]:
    """The rules in a file, in its order. Raises ConfigError that names file, line and key."""
    document, reader = read_document(path, RulesFile)
    return [_rule(entry, f"rules[{i}]", reader) for i, entry in enumerate(document.rules)]


def make_classifier(own: Path | None) -> ReplyClassifier:
    """The classifier of a relay: the rules in ``own`` before those that are shipped. Raises ConfigError."""
    return ReplyClassifier([*(load_rules(own) if own is not None else []), *load_rules(SHIPPED)])


def _rule(entry: RuleEntry, key: str, reader: Reader) -> ReplyRule:
    if entry.class_ not in _CLASSES:
        found = f"found '{entry.class_}'" if entry.class_ else "a class is needed"
        reader.complain(f"{key}.class", f"{found}, allowed: {', '.join(_CLASSES)}")
    for pattern in entry.pattern:
        if problem := problem_of(pattern):
            reader.complain(f"{key}.pattern", f"'{pattern}' is no pattern of RE2: {problem}")
    _check(entry.code, is_code_pattern, f"{key}.code", "a code such as 550, 45x or 5xx", reader)
    _check(entry.status, is_status_pattern, f"{key}.status", "a status such as 5.7.1 or 4.2.*", reader)
    _check(entry.phase, _PHASES.__contains__, f"{key}.phase", f"one of {', '.join(_PHASES)}", reader)
    if not (entry.pattern or entry.code or entry.status or entry.phase):
        reader.complain(key, "a condition is needed: pattern, code, status or phase")
    return ReplyRule(
        ReplyClass(entry.class_),
        tuple(entry.pattern),
        tuple(entry.code),
        tuple(entry.status),
        tuple(entry.phase),
        str(reader.path),
        reader.line_of(key),
    )


def _check(
    words: Iterable[str], test: Callable[[str], bool], key: str, allowed: str, reader: Reader
) -> None:
    for word in words:
        if not test(word):
            reader.complain(key, f"found '{word}', expected {allowed}")
