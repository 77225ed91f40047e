"""Files of classification rules: the shipped one and the user's, as ``ReplyRule`` values."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from zonemta_py.config.load import read_document, shipped_file
from zonemta_py.config.reader import Reader
from zonemta_py.config.values import Word
from zonemta_py.core.text import problem_of
from zonemta_py.smtp.reply_class import (
    UNKNOWN,
    ReplyClass,
    ReplyClassifier,
    ReplyRule,
    is_code_pattern,
    is_status_pattern,
)
from zonemta_py.smtp.verdict import Phase

SHIPPED = shipped_file("classify.yaml")
_CLASSES = tuple(ReplyClass)
_PHASES = (*(each.value for each in Phase), UNKNOWN)
_NAMED = re.compile(r"(?<!\\[pP])\{([a-z][a-z_]*)\}")  # a word of ``words`` in a pattern


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One rule as a file has it."""

    class_: str | None = None
    pattern: tuple[Word, ...] = ()
    unless: tuple[Word, ...] = ()
    code: tuple[Word, ...] = ()
    status: tuple[Word, ...] = ()
    phase: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class RulesFile:
    """A whole file. ``words``: parts of patterns by their names."""

    words: dict[str, str] = field(default_factory=dict)
    rules: tuple[RuleEntry, ...] = ()


def load_rules(path: Path, *, checks_patterns: bool = True) -> list[ReplyRule]:
    """The rules in a file, in its order. Raises ConfigError that names file, line and key.

    ``checks_patterns``: each is compiled by itself, which takes 0.2 ms.
    """
    document, reader = read_document(path, RulesFile)
    words: dict[str, str] = {}
    for name, text in document.words.items():
        words[name] = f"(?:{_filled(text, words, f'words.{name}', reader)})"
    rules = [_rule(entry, words, f"rules[{i}]", reader) for i, entry in enumerate(document.rules)]
    if checks_patterns:
        _check_patterns(rules, reader)
    return rules


def _check_patterns(rules: Sequence[ReplyRule], reader: Reader) -> None:
    for number, rule in enumerate(rules):
        for name, patterns in (("pattern", rule.patterns), ("unless", rule.unless)):
            for pattern in patterns:
                if problem := problem_of(pattern):
                    key = f"rules[{number}].{name}"
                    reader.complain(key, f"'{pattern}' is no pattern of RE2: {problem}")


def make_classifier(own: Path | None) -> ReplyClassifier:
    """The classifier of a relay: the rules in ``own`` before those that are shipped. Raises ConfigError."""
    if own is None:
        return _shipped_classifier()
    return ReplyClassifier([*load_rules(own), *_shipped_rules()])


@cache
def _shipped_rules() -> Sequence[ReplyRule]:
    """Read once, and not checked: the file is a part of this version, as its code is, and has its tests."""
    return load_rules(SHIPPED, checks_patterns=False)


@cache
def _shipped_classifier() -> ReplyClassifier:
    """One for all relays of this process: what it answers depends on its rules and the reply only."""
    return ReplyClassifier(_shipped_rules())


def _filled(pattern: str, words: Mapping[str, str], key: str, reader: Reader) -> str:
    """``pattern`` with the text of each word in the place of its name."""
    for name in _NAMED.findall(pattern):
        if name not in words:
            reader.complain(
                key, f"'{{{name}}}' is none of the words above: {', '.join(words) or 'none'}"
            )
    return _NAMED.sub(lambda found: words[found[1]], pattern)


def _patterns(
    given: Iterable[str], words: Mapping[str, str], key: str, reader: Reader
) -> tuple[str, ...]:
    return tuple(_filled(each, words, key, reader) for each in given)


def _rule(entry: RuleEntry, words: Mapping[str, str], key: str, reader: Reader) -> ReplyRule:
    if entry.class_ not in _CLASSES:
        found = f"found '{entry.class_}'" if entry.class_ else "a class is needed"
        reader.complain(f"{key}.class", f"{found}, allowed: {', '.join(_CLASSES)}")
    patterns = _patterns(entry.pattern, words, f"{key}.pattern", reader)
    unless = _patterns(entry.unless, words, f"{key}.unless", reader)
    _check(entry.code, is_code_pattern, f"{key}.code", "a code such as 550, 45x or 5xx", reader)
    _check(entry.status, is_status_pattern, f"{key}.status", "a status such as 5.7.1 or 4.2.*", reader)
    _check(entry.phase, _PHASES.__contains__, f"{key}.phase", f"one of {', '.join(_PHASES)}", reader)
    if not (entry.pattern or entry.code or entry.status or entry.phase):
        reader.complain(key, "a condition is needed: pattern, code, status or phase")
    if unless and not patterns:
        reader.complain(f"{key}.unless", "it needs a pattern beside it")
    return ReplyRule(
        reply_class=ReplyClass(entry.class_),
        patterns=patterns,
        codes=tuple(entry.code),
        statuses=tuple(entry.status),
        phases=tuple(entry.phase),
        unless=unless,
        source=str(reader.path),
        line=reader.line_of(key),
    )


def _check(
    words: Iterable[str], test: Callable[[str], bool], key: str, allowed: str, reader: Reader
) -> None:
    for word in words:
        if not test(word):
            reader.complain(key, f"found '{word}', expected {allowed}")
