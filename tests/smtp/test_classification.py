"""The classes of replies: the shipped rules on collected replies, and the classifier itself."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.cli.lint import examples_of, lint_rules
from zonemta_py.config.reply_rules import SHIPPED, load_rules, make_classifier
from zonemta_py.smtp.reply_class import (
    NAMES,
    SEARCHED_MAX,
    ReplyClass,
    ReplyClassifier,
    ReplyRule,
    classified_row,
    code_matches,
    read_reply,
    status_matches,
)

REPLIES = Path(__file__).with_name("replies")
LEAST_SHARE = 0.97
LEAST_UNSEEN = {494: 0.85, None: 0.80}  # of the first collection, and of all
LEAST_REPLIES = 400
ROOT = Path(__file__).parents[2]

SHIPPED_CLASSIFIER = make_classifier(None)


def collected(name: str) -> list[dict[str, Any]]:
    lines = (REPLIES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def wrong(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], ReplyClass]]:
    found = []
    for row in rows:
        given_class = SHIPPED_CLASSIFIER.classify(
            row["phase"].replace("helo", "connect"), row["code"], row["status"], row["text"]
        )
        if given_class != row["class"]:
            found.append((row, given_class))
    return found


# ---- the corpus


def test_known_replies() -> None:
    """At least 97 % of the replies from which the rules were written are right."""
    rows = collected("known")
    missed = wrong(rows)
    lines = [
        f"{row['class']}, not {found}: {row['code']} {row['status']} {row['text']}"
        for row, found in missed
    ]
    assert 1 - len(missed) / len(rows) >= LEAST_SHARE, "\n".join(lines)


def share_of_unseen(first: int | None = None) -> float:
    """The share that is right, of the ``first`` lines. Nothing shows a text, so that the rules' author does not see one."""
    rows = collected("unseen")[:first]
    share = 1 - len(wrong(rows)) / len(rows)
    print(f"{share:.4f}", dict(Counter(row["class"] for row in rows)))
    return share


@pytest.mark.parametrize("first", LEAST_UNSEEN)
def test_unseen_replies(first: int | None) -> None:
    """What the rules reach today in replies that their author has not seen; it must not get worse."""
    assert share_of_unseen(first) >= LEAST_UNSEEN[first]


@pytest.mark.xfail(
    strict=True,
    reason="the aim is as for known ones; two readers agree on 90 to 93 % of them",
)
def test_the_aim_for_unseen_replies() -> None:
    assert share_of_unseen() >= LEAST_SHARE


def test_the_corpus_is_large_enough() -> None:
    known, unseen = len(collected("known")), len(collected("unseen"))
    assert known + unseen >= LEAST_REPLIES
    assert unseen / (known + unseen) >= 0.32


def test_no_shipped_rule_is_useless() -> None:
    assert lint_rules(load_rules(SHIPPED)) == []


# ---- names


def test_every_class_has_names_and_a_line_in_the_docs() -> None:
    page = (ROOT / "docs/classification.md").read_text()
    assert set(NAMES) == set(ReplyClass)
    for reply_class, names in NAMES.items():
        assert f"| `{reply_class}` | {names.kumomta} | {names.powermta} |" in page


# ---- how rules match


def rule(reply_class: str, *patterns: str, **conditions: Any) -> ReplyRule:
    return ReplyRule(ReplyClass(reply_class), patterns, **conditions)


def test_the_first_rule_wins_whose_conditions_hold() -> None:
    classifier = ReplyClassifier(
        [
            rule("blocked", "no", codes=("5xx",), phases=("mail",)),
            rule("policy", "no", "never", statuses=("*.7.1",)),
            rule("content", statuses=("5.6.*",)),
            rule("spam_content", "no"),
        ]
    )
    cases = [
        ("mail", 550, "5.7.1", "NO", "blocked"),
        ("rcpt", 550, "5.7.1", "no", "policy"),
        ("mail", 450, "4.7.1", "never", "policy"),
        ("dot", 554, "5.6.3", "no", "content"),  # a rule without a pattern has its place, too
        ("dot", 554, "", "no", "spam_content"),
        ("dot", 554, "", "yes", "other"),
    ]
    for phase, code, status, text, expected in cases:
        assert classifier.classify(phase, code, status, text) == expected


def test_unless() -> None:
    """One of its patterns in the text, and the next rule is asked."""
    classifier = ReplyClassifier(
        [
            rule("invalid_sender", "sender unknown", unless=("to the recipient", "here")),
            rule("policy", "sender", unless=("friend",), codes=("5xx",)),
        ]
    )
    assert classifier.classify("mail", 550, "", "sender unknown") == "invalid_sender"
    assert classifier.classify("mail", 550, "", "Sender unknown here") == "policy"
    assert classifier.classify("mail", 450, "", "sender unknown here") == "other"
    assert classifier.classify("mail", 550, "", "sender unknown here, friend") == "other"


def test_what_patterns_see() -> None:
    """Not URLs and addresses, unless nothing else matches; a status in the text; 1,024 characters."""
    classifier = ReplyClassifier(
        [
            rule("blocked", "spam"),
            rule("policy", "no mail"),
            rule("invalid_recipient", statuses=("5.1.1",)),
        ]
    )
    see = "no mail, see https://x.example/spam or write to spam@x.example"
    assert classifier.classify("rcpt", 550, "", see) == "policy"
    assert classifier.classify("rcpt", 550, "", "see https://x.example/spam") == "blocked"
    assert classifier.classify("rcpt", 550, "", "sorry (#5.1.1)") == "invalid_recipient"
    assert classifier.classify("rcpt", 450, "", "sorry (#5.1.1)") == "other"
    assert classifier.classify("rcpt", 550, "", "in 5.1.1.1 or 15.1.1") == "other"
    assert classifier.classify("rcpt", 550, "", "x" * SEARCHED_MAX + " spam") == "other"
    spaced = ReplyClassifier([rule("blocked", "^550 5.7.1 it's a spam")])
    assert spaced.classify("", 550, "5.7.1", "it\N{RIGHT SINGLE QUOTATION MARK}s  a\tspam") == "blocked"


LOCAL = [
    ("connect", "4.4.3", "looking up MX of a.example failed: Timeout", "dns_failure"),
    ("connect", "4.1.2", "no mail exchanger of a.example has an address", "bad_domain"),
    ("connect", "5.1.2", "the domain a.example does not exist", "bad_domain"),
    ("connect", "5.4.4", "a.example has neither MX nor address", "bad_domain"),
    ("connect", "5.1.10", "a.example accepts no mail (null MX)", "bad_domain"),
    ("connect", "4.4.4", "no address of pool 'default' can reach ::1", "routing"),
    ("connect", "5.4.6", "mail for a.example loops back to this relay", "routing"),
    ("connect", "4.4.1", "mx.a.example[192.0.2.1]:25: connection timed out", "no_answer"),
    ("connect", "4.4.2", "mx.a.example[192.0.2.1]:25: closed the connection", "bad_connection"),
    ("dot", "4.4.2", "no answer to the final dot: connection lost", "bad_connection"),
    ("connect", "4.7.5", "mx.a.example[192.0.2.1]:25: STARTTLS failed", "bad_connection"),
    ("connect", "4.7.10", "mx.a.example[192.0.2.1]:25 offers no TLS", "bad_connection"),
    ("connect", "4.7.0", "/etc/password: the password cannot be read", "policy"),
    ("mail", "5.6.7", "an address or header needs SMTPUTF8", "content"),
    ("dot", "4.3.0", "the stored message is damaged", "other"),
    ("operator", "5.0.0", "returned: mailbox full", "other"),
    ("connect", "4.7.1", "mx[192.0.2.1]:25 said: 554 5.7.1 bad reputation", "blocked"),
    (
        "connect",
        "4.4.0",
        "mx[192.0.2.1]:25 said: 421 Too many concurrent sessions",
        "connection_limited",
    ),
    ("connect", "4.4.0", "mx[192.0.2.1]:25 said: nonsense", "other"),
]


@pytest.mark.parametrize("phase, status, text, expected", LOCAL)
def test_reasons_of_this_relay(phase: str, status: str, text: str, expected: str) -> None:
    """By their status; what a server said when it was connected is its reply."""
    assert SHIPPED_CLASSIFIER.classify(phase, 0, status, text) == expected


def test_patterns_of_codes_and_statuses() -> None:
    assert code_matches("5xx", 550) and code_matches("55x", 554) and code_matches("550", 550)
    assert not code_matches("4xx", 550) and not code_matches("551", 550)
    assert (
        status_matches("*.7.1", "4.7.1") and status_matches("5.7.*", "5.7.26") and status_matches("", "")
    )
    assert not status_matches("5.7.*", "5.7") and not status_matches("5.7.1", "")


# ---- texts of a reader


def test_replies_as_they_are_pasted() -> None:
    assert read_reply("550-5.1.1 no\r\n550 5.1.1 such user") == (550, "5.1.1", "no such user")
    logged = "host mx.example[192.0.2.1] said: 421 4.7.0 later"
    assert read_reply(logged) == (421, "4.7.0", "later")
    assert read_reply("554") == (554, "", "")
    for text in ("", "no code", "999 x", "5500 x"):
        with pytest.raises(ValueError, match="begins with its code"):
            read_reply(text)
    row = classified_row(SHIPPED_CLASSIFIER, "552 5.2.2 Mailbox full")
    assert (row["class"], row["kumomta"], row["powermta"]) == (
        "mailbox_full",
        "QuotaIssues",
        "quota-issues",
    )
    assert Path(row["file"]) == SHIPPED and row["line"] > 1


@given(
    st.sampled_from(["", "connect", "mail", "rcpt", "data", "dot", "operator"]),
    st.integers(0, 599),
    st.text(max_size=12),
    st.text(max_size=1500),
)
def test_every_reply_has_a_class(phase: str, code: int, status: str, text: str) -> None:
    found = SHIPPED_CLASSIFIER.explain(phase, code, status, text)
    assert isinstance(found.reply_class, ReplyClass)
    again = SHIPPED_CLASSIFIER.explain(phase, code, status, text[:SEARCHED_MAX] + "x" * 10)
    assert len(text) < SEARCHED_MAX or again == found


# ---- rules that cannot win


def test_lint() -> None:
    rules = [
        ReplyRule(ReplyClass.POLICY, ("spam", "(junk|bulk) mail"), line=1),
        ReplyRule(ReplyClass.BLOCKED, ("this is spam",), line=2),
        ReplyRule(ReplyClass.BLOCKED, ("bulk (e-?)?mail",), line=3),  # "bulk email" is left
        ReplyRule(ReplyClass.BLOCKED, ("bulk mail", "other"), ("5xx",), line=4),
        ReplyRule(ReplyClass.CONTENT, (), ("4xx",), line=5),
        ReplyRule(ReplyClass.VIRUS, ("virus", "virus"), ("4xx", "450"), line=6),
        ReplyRule(ReplyClass.VIRUS, ("worm", "worm"), line=7),
        ReplyRule(ReplyClass.VIRUS, ("late",), ("4xx",), line=8),
        ReplyRule(ReplyClass.POLICY, ("sent",), unless=("no",), line=9),
        ReplyRule(ReplyClass.BLOCKED, ("sent",), line=10),  # wins when "no" is found
        ReplyRule(ReplyClass.BLOCKED, ("sent by",), unless=("no", "yes"), line=11),
    ]
    found = [(each.line, each.text) for each in lint_rules(rules)]
    assert found == [
        (2, "pattern 'this is spam' cannot win: line 1 is first"),
        (4, "pattern 'bulk mail' cannot win: line 1 is first"),
        (6, "pattern 'virus' appears twice"),
        (7, "pattern 'worm' appears twice"),
        (8, "cannot win: line 5 has no further condition"),
        (11, "pattern 'sent by' cannot win: line 9 is first"),
    ]


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+$", "(.*a){20}", "a{0,500}a{500}"])
def test_no_pattern_can_hang(pattern: str) -> None:
    """A matcher that tries one way after the other does not end within a lifetime."""
    classifier = ReplyClassifier([rule("policy", pattern)])
    assert classifier.classify("dot", 550, "", f"{'a' * 1000}c") in ("policy", "other")


@pytest.mark.parametrize(
    "pattern", ["a(b|c)d?", r"\bx{2,3} [0-9]+\.", "(?:a|b)(c|d)", "[^x]y", "x.{0,9}y"]
)
def test_examples_match(pattern: str) -> None:
    found = examples_of(pattern)
    assert found
    assert all(re.search(pattern, example) for example in found)
