"""Replies to attempts that failed: the class, the kind and the template of each.

The *class* is that of the event. The relay's classifier with the shipped rules gives it where there is none: in reports that came
by mail, and in events of earlier versions. A *kind* is a reply without addresses, ids and numbers. A *template* is the text that
similar kinds share: words that differ become ``<*>``.

    550 5.1.1 <ann@x.example> unknown in table 17      <address> unknown in table <n>       <address> unknown in table <*>

Kinds with the same number of words, most of them equal, are one template. That is Drain (He et al., 2017) without its tree, which
is not needed: there are only a few thousand kinds. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.smtp.reply_class import ReplyClass, ReplyClassifier

_C = ReplyClass
WORDS: Mapping[str, str] = {
    _C.INVALID_RECIPIENT: "no such mailbox",
    _C.INACTIVE_MAILBOX: "mailbox disabled or abandoned",
    _C.MAILBOX_FULL: "mailbox full",
    _C.BAD_DOMAIN: "no such domain, or it takes no mail",
    _C.DNS_FAILURE: "DNS look-up failed",
    _C.BLOCKED: "our address, network or domain refused",
    _C.SPAM_CONTENT: "looks like spam or phishing",
    _C.VIRUS: "said to hold a virus",
    _C.ATTACHMENT: "file not taken",
    _C.TOO_LARGE: "too large",
    _C.CONTENT: "format of the message",
    _C.POLICY: "another rule of the receiver",
    _C.AUTHENTICATION: "SPF, DKIM, DMARC, reverse DNS or HELO",
    _C.RATE_LIMITED: "too much in a period",
    _C.CONNECTION_LIMITED: "too many connections at once",
    _C.GREYLISTED: "greylisting",
    _C.TOO_MANY_RECIPIENTS: "too many recipients in a transaction",
    _C.RELAY_DENIED: "server takes no mail for the domain",
    _C.INVALID_SENDER: "sender does not exist or is not verified",
    _C.ROUTING: "loop, too many hops or no route",
    _C.PROTOCOL: "syntax, sequence or SMTP AUTH",
    _C.BAD_CONNECTION: "connection lost, or TLS failed",
    _C.NO_ANSWER: "no host could be connected",
    _C.SERVER_ERROR: "trouble of the receiver",
    _C.EXPIRED: "given up because of its time",
    _C.OTHER: "says nothing to act on",
}  # of a report, for each class
KIND_MAX = 200  # characters of a kind
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
    """``reply`` with placeholders for addresses, ids and numbers."""
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


def templates_of(weights: Mapping[str | None, int]) -> dict[str, str]:
    """The template of each kind. ``weights``: how often each occurs."""
    kinds = sorted((-weight, kind) for kind, weight in weights.items() if kind is not None)
    return mine_templates(kind for _, kind in kinds)


@cache
def _classifier() -> ReplyClassifier:
    return make_classifier(None)


def class_of(
    given: str | None, phase: str | None, code: int | str | None, status: str | None, text: str | None
) -> str:
    """The class of a reply. ``given``: that of its event, if it has one."""
    return given or _classifier().classify(phase or "", int(code or 0), status or "", text or "")
