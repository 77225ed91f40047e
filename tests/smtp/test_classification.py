"""The classes of replies: the shipped rules on collected replies, and the classifier itself."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.reply_rules import SHIPPED, load_rules, make_classifier
from zonemta_py.smtp.classification import (
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
from zonemta_py.smtp.rule_lint import examples_of, lint_rules

REPLIES = Path(__file__).with_name("replies")
LEAST_SHARE = 0.97
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
            row["phase"] or "", row["code"], row["status"], row["text"]
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


def test_unseen_replies() -> None:
    """As many of those that the rules' author has not seen. A failure shows no text, so that it stays so."""
    rows = collected("unseen")
    share = 1 - len(wrong(rows)) / len(rows)
    print(f"{share:.4f}", dict(Counter(row["class"] for row in rows)))
    assert share >= LEAST_SHARE, f"{share:.4f}; expected: {dict(Counter(row['class'] for row in rows))}"


def test_the_corpus_is_large_enough() -> None:
    known, unseen = len(collected("known")), len(collected("unseen"))
    assert known + unseen >= LEAST_REPLIES
    assert unseen / (known + unseen) >= 0.32
