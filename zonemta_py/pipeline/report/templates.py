"""Mines the templates of replies: common words are kept, words that differ become ``<*>``. Pure.

Replies with the same number of words, most of them equal, are one template. That is Drain (He et al., 2017)
without its tree, which is not needed: masked replies have only a few thousand distinct values.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.smtp.reply_class import GONE, ReplyClassifier
from zonemta_py.smtp.verdict import Phase

WILD = "<*>"
SIMILARITY_MIN = 0.6  # of the words must be equal
TEMPLATES_MAX = 500  # for each number of words; further replies join the most similar template

MASKS = (
    (r"<[^>\s]*@[^>\s]*>|[^\s<>]+@[^\s<>]+", "<address>"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}\b", "<ip>"),
    (r"https?://\S+", "<url>"),
    (r"\b(?=\w*\d)[\w-]{8,}\b", "<id>"),
    (r"\d+", "<n>"),
)  # variable parts that have a fixed form; Python and Java both understand the expressions
_MASKS = tuple((re.compile(pattern), placeholder) for pattern, placeholder in MASKS)


def masked(reply: str) -> str:
    """``reply`` with placeholders for addresses, ids and numbers; ``transforms.replies`` does it in Spark."""
    for pattern, placeholder in _MASKS:
        reply = pattern.sub(placeholder, reply)
    return reply


class ReplyTemplates:
    """The templates so far; add replies in the order of their frequency."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[list[str]]] = {}

    def add(self, masked_reply: str) -> None:
        """Merge a masked reply into its most similar template, or add a template."""
        words = masked_reply.split()
        known = self._by_length.setdefault(len(words), [])
        nearest = max(known, key=lambda each: _similarity(each, words), default=None)
        if nearest is None or (
            _similarity(nearest, words) < SIMILARITY_MIN and len(known) < TEMPLATES_MAX
        ):
            known.append(words)
            return
        nearest[:] = [a if a == b else WILD for a, b in zip(nearest, words, strict=True)]

    def of(self, masked_reply: str) -> str:
        """The template of a masked reply; the reply itself when there is none."""
        words = masked_reply.split()
        known = self._by_length.get(len(words), [])
        nearest = max(known, key=lambda each: _similarity(each, words), default=words)
        return " ".join(nearest)

    def __iter__(self) -> Iterator[str]:
        return (" ".join(words) for known in self._by_length.values() for words in known)


def mine_templates(masked_replies: Iterable[str]) -> dict[str, str]:
    """The template of each masked reply; they are given in order of frequency, highest first."""
    templates, replies = ReplyTemplates(), list(masked_replies)
    for reply in replies:
        templates.add(reply)
    return {reply: templates.of(reply) for reply in replies}


def _similarity(template: list[str], words: list[str]) -> float:
    """The share of equal words; WILD counts half, so that an exact template wins."""
    if not words:
        return 1.0
    points = sum(
        1.0 if a == b else 0.5 if a == WILD else 0.0 for a, b in zip(template, words, strict=True)
    )
    return points / len(words)


# ---- What a failed attempt is about: the class in its event, and for events without one that of the relay's classifier. Pure.
#
# There is no classifier here: ``smtp.classification`` has it, and ``config/classify.yaml`` its rules.

HARD = GONE
# Replies that cannot be about a recipient, whatever their words: no RCPT was sent before them.
BEFORE_RECIPIENTS = (Phase.CONNECT.value, Phase.MAIL.value)


class FailedReply(NamedTuple):
    """A reply as an event has it. ``given``: its class; empty or None in events of earlier versions. ``code``: three digits."""

    given: str | None
    phase: str | None
    code: str | None
    status: str | None
    text: str | None


@cache
def _classifier() -> ReplyClassifier:
    return make_classifier(None)


def reason_of(reply: FailedReply) -> str:
    """The class of ``reply``."""
    if reply.given:
        return reply.given
    code = int(reply.code or 0)
    return _classifier().classify(reply.phase or "", code, reply.status or "", reply.text or "")
