"""Rules that can never match, because earlier rules match every reply of theirs. Pure.

Examples answer the question if one pattern contains another: texts that a pattern matches, made from its syntax tree,
each repetition once at its least and once filled.
"""

import re
from collections.abc import Iterator, Sequence
from re import _constants as codes  # type: ignore[attr-defined]  # no public module parses patterns
from re import _parser as syntax  # type: ignore[attr-defined]  # as above
from typing import Any, NamedTuple

from zonemta_py.core.text import PatternSet
from zonemta_py.smtp.reply_class import ReplyRule

EXAMPLES_MAX = 300  # of one pattern
FILLER = "~ ~"  # what a repetition of any character is filled with


class RuleFinding(NamedTuple):
    """A fault of the rule that begins in ``line`` of ``source``."""

    source: str
    line: int
    text: str


def lint_rules(rules: Sequence[ReplyRule]) -> list[RuleFinding]:
    """Patterns that occur twice, and rules or patterns that can never match."""
    found = []
    owners = [number for number, rule in enumerate(rules) for _ in rule.patterns]
    everything = PatternSet([each for rule in rules for each in rule.patterns])
    place = 0  # of a pattern among those of all rules
    for number, rule in enumerate(rules):
        wider = {n for n, each in enumerate(rules[:number]) if _is_wider(each, rule)}
        bare = next((rules[n] for n in sorted(wider) if not rules[n].patterns), None)
        if bare is not None:
            found.append(_finding(rule, f"cannot win: line {bare.line} has no further condition"))
        seen: set[str] = set()
        for own, pattern in enumerate(() if bare is not None else rule.patterns):
            winner = _winner(pattern, place + own, everything, owners, wider)
            if pattern in seen:
                found.append(_finding(rule, f"pattern '{pattern}' appears twice"))
            elif winner is not None:
                line = rules[winner].line
                found.append(_finding(rule, f"pattern '{pattern}' cannot win: line {line} is first"))
            seen.add(pattern)
        place += len(rule.patterns)
    return found


def _finding(rule: ReplyRule, text: str) -> RuleFinding:
    return RuleFinding(rule.source, rule.line, text)


def _is_wider(earlier: ReplyRule, rule: ReplyRule) -> bool:
    """True if ``earlier`` holds for every code, status, phase and `unless` for which ``rule`` holds."""
    pairs = (
        (earlier.codes, rule.codes),
        (earlier.statuses, rule.statuses),
        (earlier.phases, rule.phases),
    )
    return set(earlier.unless) <= set(rule.unless) and all(
        not wide or (narrow and set(narrow) <= set(wide)) for wide, narrow in pairs
    )


def _winner(
    pattern: str, place: int, everything: PatternSet, owners: Sequence[int], wider: set[int]
) -> int | None:
    """The number of a rule that takes examples of ``pattern``, if rules take all of them; else None."""
    first: int | None = None
    for example in examples_of(pattern):
        matches = everything.matches(example)
        if place not in matches:
            continue  # the syntax tree is Python's: an anchor or a boundary may fail
        taken = wider.intersection(owners[each] for each in matches)
        if not taken:
            return None
        first = min(taken) if first is None else first
    return first


def examples_of(pattern: str) -> list[str]:
    """Texts that ``pattern`` matches, at most EXAMPLES_MAX; none for a pattern that Python cannot read."""
    try:
        tree = syntax.parse(pattern)
    except (re.error, OverflowError):
        return []
    found: list[str] = []
    for is_filled in (False, True):
        for example in _texts(list(tree), is_filled):
            found.append(example)
            if len(found) >= EXAMPLES_MAX:
                break
    return found


def _texts(items: Sequence[Any], is_filled: bool) -> Iterator[str]:
    """Texts for a sequence of nodes; of several places with alternatives, all pairs are tried."""
    if not items:
        yield ""
        return
    for head in _of_node(items[0], is_filled):
        for rest in _texts(items[1:], is_filled):
            yield head + rest


def _of_node(node: tuple[Any, Any], is_filled: bool) -> Iterator[str]:
    kind, value = node
    if kind is codes.LITERAL:
        yield chr(value)
    elif kind is codes.BRANCH:
        for branch in value[1]:
            yield from _texts(list(branch), is_filled)
    elif kind is codes.SUBPATTERN:
        yield from _texts(list(value[-1]), is_filled)
    elif kind in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        yield from _repeated(value, is_filled)
    elif kind is codes.IN:
        yield _member(value)
    elif kind in (codes.ANY, codes.NOT_LITERAL):
        yield "~"
    else:  # an anchor or a boundary
        yield ""


def _repeated(value: tuple[int, Any, Any], is_filled: bool) -> Iterator[str]:
    least, most, inner = value
    nodes = list(inner)
    if not is_filled:
        yield from (text * int(least) for text in _texts(nodes, is_filled)) if least else [""]
    elif nodes and nodes[0][0] is codes.ANY and most >= len(FILLER):
        yield FILLER
    else:
        yield from (text * max(1, int(least)) for text in _texts(nodes, is_filled))


def _member(items: Sequence[tuple[Any, Any]]) -> str:
    kind, value = items[0]
    if kind is codes.LITERAL:
        return chr(value)
    if kind is codes.RANGE:
        return chr(value[0])
    if kind is codes.CATEGORY:
        name = str(value).lower()
        return "7" if "digit" in name and "not" not in name else " " if "space" in name else "x"
    return "~"
