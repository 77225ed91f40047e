"""Classes of replies: the part of a delivery that a failed attempt is about, by rules. Pure.

``config/classify.yaml`` has the rules, ``docs/classification.md`` the meaning of each class. Reasons of this relay
(code 0) are known by their status, without rules.

Source: RFC 3463 and IANA's registry of enhanced status codes; the bounce classes of KumoMTA and the bounce
categories of PowerMTA for their names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from zonemta_py.core.text import PatternSet
from zonemta_py.smtp.address import contract_verp, verp_base
from zonemta_py.smtp.reply import Reply, make_reply
from zonemta_py.smtp.verdict import LOST, NO_ADDRESS, Phase, ReplySubject

# ---- The text of a reply: the part that patterns search, and replies in log lines and in texts of sessions.

SEARCHED_MAX = 1024  # characters of a reply that patterns see
SAID = " said: "  # between a host and its reply, in the text of a session that could not be opened

_REPLY = re.compile(r"([2-5]\d\d)(?:[ -]+|\Z)(.*)\Z", re.DOTALL)
_LINKS = re.compile(r"<?(?:https?://|www\.)[^\s<>]*>?")
_ADDRESSES = re.compile(r"<?(?<![^\s<>])[^\s<>@]+@(?:[\w-]+\.)*[\w-]+>?")
_NAMED = re.compile(  # an address, wherever it stands
    r"""<?(?<![^\s<>()\[\],;:"'])([^\s<>()\[\],;:"'@]+@(?:[\w-]+\.)*[\w-]+)>?"""
)
_BEFORE_REASON = re.compile(  # by Postfix; the reason may be a link alone
    r"(?:recipient address|client host) rejected: (?=\S)", re.IGNORECASE
)
_COURTESY = re.compile(  # what servers explain with each refusal, and what a log adds
    r"(?:for (?:more|further) information\b|to (?:best )?protect our users from spam\b"
    r"|to reduce the amount of spam sent to \w+|if you (?:believe|think|feel) (?:that )?(?:this|it)\b"
    r"|(?:please )?contact (?:your|the|our) (?:\w+ )?(?:administrator|postmaster|support|provider|help ?desk)\b)[^.;]*"
    r"|\(in reply to [^)]*\)|-? ?(?:please )?(?:see|visit) <>|your ip(?: address)?: \[?[\d.]+\]?",
    re.IGNORECASE,
)
_LONG = re.compile(r"[^\s<>()\[\],;:]{14,}")
ID_DIGITS_MIN = 4  # of a long word that is the id of a message or a session
_EMBEDDED = re.compile(r"(?<![\d.])[45]\.\d{1,3}\.\d{1,3}(?![.\d]*\d)")


def searched(code: int, status: str, text: str) -> str:
    """The text that patterns search: ``CODE STATUS TEXT``, cut, with single spaces and plain apostrophes."""
    words = str(Reply(code, status, text[:SEARCHED_MAX])).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return " ".join(words.split())[:SEARCHED_MAX]


def plain_words(text: str, *, links: bool = False) -> str:
    """``text`` without addresses, ids, what Postfix writes before a reason, and unless ``links`` without URLs and
    the sentences that go with them.

    A server's reply to other recipients is the same then.
    """
    text = _BEFORE_REASON.sub("<>", text)
    if not links:
        text = _COURTESY.sub("", _LINKS.sub("<>", text)).rstrip(" .,;-")
    return _LONG.sub(_without_id, _ADDRESSES.sub("<>", text))


def with_sender_named(text: str, sender: str) -> str:
    """``text`` with the word ``sender`` for the address of ``sender``; empty unless that is the only address in it."""
    found = _NAMED.findall(text)
    if not found or not sender:
        return ""
    own = verp_base(sender).lower()
    if any(each.lower() != own and not contract_verp(each, sender) for each in found):
        return ""
    return _NAMED.sub("sender", text)


def _without_id(word: re.Match[str]) -> str:
    return "~" if sum(map(str.isdigit, word[0])) >= ID_DIGITS_MIN and "/" not in word[0] else word[0]


def read_reply(text: str) -> Reply:
    """The reply in a line of a log, or in the lines of a dialogue. Raises ValueError for one without a code."""
    after = text.rpartition(SAID)[2].strip()
    lines = [_REPLY.match(line.strip()) for line in after.splitlines()]
    first = lines[0] if lines else None
    if first is None:
        raise ValueError("a reply begins with its code, such as 550 or 421")
    words = [
        line.strip() if match is None else match[2]
        for match, line in zip(lines, after.splitlines(), strict=True)
    ]
    status = _EMBEDDED.match(words[0])
    if status is not None:
        words[1:] = [word.removeprefix(status[0]).strip() for word in words[1:]]
    return make_reply(int(first[1]), " ".join(words))


def embedded_status(code: int, text: str) -> str:
    """The status of RFC 3463 that a server wrote into the text, as qmail does: ``(#5.1.1)``; empty without one."""
    for found in _EMBEDDED.findall(text):
        if found[0] == str(code)[0]:
            return str(found)
    return ""


def quoted_reply(text: str) -> Reply:
    """The server's reply in the text of a session that could not be opened."""
    reply = text.partition(SAID)[2]
    code, _, rest = reply.partition(" ")
    return make_reply(int(code) if code.isascii() and code.isdigit() and len(code) == 3 else 0, rest)


# ---- Classes, rules and the classifier.

CACHED_MAX = 2048  # replies whose class is remembered
UNKNOWN = "unknown"  # the phase of a reply that is classified without one


class ReplyClass(StrEnum):
    """The classes. Events have them as ``class``."""

    INVALID_RECIPIENT = "invalid_recipient"
    INACTIVE_MAILBOX = "inactive_mailbox"
    MAILBOX_FULL = "mailbox_full"
    BAD_DOMAIN = "bad_domain"
    DNS_FAILURE = "dns_failure"
    BLOCKED = "blocked"
    SPAM_CONTENT = "spam_content"
    VIRUS = "virus"
    ATTACHMENT = "attachment"
    TOO_LARGE = "too_large"
    CONTENT = "content"
    POLICY = "policy"
    AUTHENTICATION = "authentication"
    RATE_LIMITED = "rate_limited"
    CONNECTION_LIMITED = "connection_limited"
    GREYLISTED = "greylisted"
    TOO_MANY_RECIPIENTS = "too_many_recipients"
    RELAY_DENIED = "relay_denied"
    INVALID_SENDER = "invalid_sender"
    ROUTING = "routing"
    PROTOCOL = "protocol"
    BAD_CONNECTION = "bad_connection"
    NO_ANSWER = "no_answer"
    SERVER_ERROR = "server_error"
    EXPIRED = "expired"
    OTHER = "other"


class Names(NamedTuple):
    """The names of a class in KumoMTA and PowerMTA."""

    kumomta: str
    powermta: str


_C = ReplyClass
NAMES = {
    _C.INVALID_RECIPIENT: Names("InvalidRecipient", "bad-mailbox"),
    _C.INACTIVE_MAILBOX: Names("InactiveMailbox", "inactive-mailbox"),
    _C.MAILBOX_FULL: Names("QuotaIssues", "quota-issues"),
    _C.BAD_DOMAIN: Names("BadDomain", "bad-domain"),
    _C.DNS_FAILURE: Names("DNSFailure", "routing-errors"),
    _C.BLOCKED: Names("SpamBlock", "spam-related"),
    _C.SPAM_CONTENT: Names("SpamContent", "spam-related"),
    _C.VIRUS: Names("VirusRelated", "virus-related"),
    _C.ATTACHMENT: Names("ProhibitedAttachment", "content-related"),
    _C.TOO_LARGE: Names("ContentRelated", "content-related"),
    _C.CONTENT: Names("ContentRelated", "content-related"),
    _C.POLICY: Names("PolicyRelated", "policy-related"),
    _C.AUTHENTICATION: Names("AuthenticationFailed", "policy-related"),
    _C.RATE_LIMITED: Names("TransientFailure", "policy-related"),
    _C.CONNECTION_LIMITED: Names("BadConnection", "policy-related"),
    _C.GREYLISTED: Names("TransientFailure", "policy-related"),
    _C.TOO_MANY_RECIPIENTS: Names("TooManyRecipients", "policy-related"),
    _C.RELAY_DENIED: Names("RelayDenied", "relaying-issues"),
    _C.INVALID_SENDER: Names("InvalidSender", "invalid-sender"),
    _C.ROUTING: Names("RoutingErrors", "routing-errors"),
    _C.PROTOCOL: Names("ProtocolErrors", "protocol-errors"),
    _C.BAD_CONNECTION: Names("BadConnection", "bad-connection"),
    _C.NO_ANSWER: Names("NoAnswerFromHost", "no-answer-from-host"),
    _C.SERVER_ERROR: Names("BadConfiguration", "bad-configuration"),
    _C.EXPIRED: Names("MessageExpired", "message-expired"),
    _C.OTHER: Names("Uncategorized", "other"),
}

_SUBJECTS = {
    _C.BLOCKED: ReplySubject.ADDRESS,
    _C.RATE_LIMITED: ReplySubject.SESSION,
    _C.CONNECTION_LIMITED: ReplySubject.SESSION,
    _C.GREYLISTED: ReplySubject.SESSION,
    _C.TOO_MANY_RECIPIENTS: ReplySubject.DIALOGUE,
    _C.PROTOCOL: ReplySubject.DIALOGUE,
    _C.BAD_CONNECTION: ReplySubject.TLS,
    _C.INVALID_SENDER: ReplySubject.SENDER,
    _C.AUTHENTICATION: ReplySubject.SENDER,
} | dict.fromkeys(
    (_C.SPAM_CONTENT, _C.VIRUS, _C.ATTACHMENT, _C.TOO_LARGE, _C.CONTENT, _C.POLICY, _C.OTHER),
    ReplySubject.MESSAGE,
)  # fmt: skip
# The recipient is gone, or was never there: no mail will reach it.
GONE = frozenset((_C.INVALID_RECIPIENT, _C.INACTIVE_MAILBOX, _C.BAD_DOMAIN))
# In a greeting not about our address; an empty class is of a reply that was not classified.
_OF_GREETINGS = (
    "", _C.BAD_DOMAIN, _C.RATE_LIMITED, _C.CONNECTION_LIMITED, _C.GREYLISTED, _C.BAD_CONNECTION, _C.PROTOCOL,
)  # fmt: skip
_OF_COMMANDS = (503, 530)  # a sequence of commands; TLS or AUTH is needed first
# In a session that lost its TLS a refusal by policy may ask for it, whatever its words and its code.
_MAY_BE_OF_TLS = (
    _C.POLICY,
    _C.AUTHENTICATION,
    _C.RELAY_DENIED,
    _C.PROTOCOL,
    _C.BAD_CONNECTION,
    _C.OTHER,
)
_OF_TLS = ("5.7.10", "5.7.11")  # RFC 5248: encryption is needed
_OF_ARGUMENT = (501, 553)  # what the command names is not understood: RFC 5321 section 4.2.2


def subject(
    phase: Phase, code: int, status: str, reply_class: str, *, lost_tls: bool = False
) -> ReplySubject:
    """The part of a delivery that a reply of ``reply_class`` is about: the one rule, with ``classify.verdict``.

    Classes of the recipient's server (such as ``server_error``) count as the mailbox: a 5xx of these is final. A greeting
    knows no sender and no message: if it does not say that the host takes no mail at all, it is about our address.
    """
    if phase is Phase.CONNECT and reply_class not in _OF_GREETINGS:
        return ReplySubject.ADDRESS
    if status in _OF_TLS or (lost_tls and reply_class in _MAY_BE_OF_TLS):
        return ReplySubject.TLS
    if code in _OF_COMMANDS:
        return ReplySubject.DIALOGUE
    if reply_class == _C.PROTOCOL and code in _OF_ARGUMENT and phase in _ARGUMENTS:
        return _ARGUMENTS[phase]
    return (
        _SUBJECTS.get(ReplyClass(reply_class), ReplySubject.MAILBOX)
        if reply_class
        else ReplySubject.MAILBOX
    )


_ARGUMENTS = {Phase.MAIL: ReplySubject.SENDER, Phase.RCPT: ReplySubject.MAILBOX}

# Statuses of reasons of this relay, with the first digit 4 or 5.
_LOCAL = {
    NO_ADDRESS[2:]: _C.BAD_DOMAIN,  # it has no address; after a day X.1.2
    "3.0": _C.OTHER,  # trouble of this relay
    "1.10": _C.BAD_DOMAIN,
    "4.4": _C.ROUTING,
    "4.3": _C.DNS_FAILURE,
    "4.1": _C.NO_ANSWER,
    LOST[2:]: _C.BAD_CONNECTION,
    "4.6": _C.ROUTING,
    "4.7": _C.EXPIRED,
    "6.3": _C.CONTENT,
    "6.7": _C.CONTENT,
    "7.5": _C.BAD_CONNECTION,  # TLS failed
    "7.10": _C.BAD_CONNECTION,  # TLS is required and not offered
}
_NO_MX = (
    "5.4.4"  # of earlier versions: neither MX nor address; 4.4.4 is a configuration that leads nowhere
)


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """Every condition that is not empty must hold: one of the patterns, codes, statuses, phases.

    Codes are ``550``, ``45x`` or ``4xx``, statuses ``5.7.1``, ``4.2.*`` or ``*.7.1``. ``unless``: patterns of which
    none may be found. ``source`` and ``line``: where it was read.
    """

    reply_class: ReplyClass
    patterns: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    source: str = ""
    line: int = 0

    def allows(self, phase: str, code: int, status: str) -> bool:
        """True if all conditions but the patterns hold."""
        if self.phases and (phase or UNKNOWN) not in self.phases:
            return False
        if self.codes and not any(code_matches(each, code) for each in self.codes):
            return False
        return not self.statuses or any(status_matches(each, status) for each in self.statuses)


@lru_cache(maxsize=1024)
def code_matches(wanted: str, code: int) -> bool:
    """True if ``code`` is ``wanted``, in which ``x`` stands for any digit."""
    found = str(code)
    return len(found) == len(wanted) and all(w in ("x", f) for w, f in zip(wanted, found, strict=True))


@lru_cache(maxsize=4096)
def status_matches(wanted: str, status: str) -> bool:
    """True if ``status`` is ``wanted``, in which ``*`` stands for any number."""
    parts, found = wanted.split("."), status.split(".")
    return len(parts) == len(found) and all(w in ("*", f) for w, f in zip(parts, found, strict=True))


_CODE = re.compile(r"[2-5]([0-9][0-9x]|xx)\Z")
_STATUS = re.compile(r"([245*](\.(\d{1,3}|\*)){2})?\Z")


def is_code_pattern(text: str) -> bool:
    """True if ``text`` can be one of the codes of a rule."""
    return _CODE.match(text) is not None


def is_status_pattern(text: str) -> bool:
    """True if ``text`` can be one of the statuses of a rule."""
    return _STATUS.match(text) is not None


class Classified(NamedTuple):
    """A class, and the rule that gave it; None for a reason of this relay, or a reply that no rule knows."""

    reply_class: ReplyClass
    rule: ReplyRule | None


class ReplyClassifier:
    """Applies rules to replies: the first one that matches gives the class. Raises ValueError for a bad pattern."""

    def __init__(self, rules: Sequence[ReplyRule]) -> None:
        self.rules = tuple(rules)
        self._owners = [n for n, rule in enumerate(self.rules) for _ in rule.patterns]
        self._barred = [n for n, rule in enumerate(self.rules) for _ in rule.unless]
        self._patterns = PatternSet(
            [each for rule in self.rules for each in rule.patterns]
            + [each for rule in self.rules for each in rule.unless]
        )
        self._bare = [n for n, rule in enumerate(self.rules) if not rule.patterns]
        self._cached = lru_cache(maxsize=CACHED_MAX)(self._explain)
        self._owners_of = lru_cache(maxsize=CACHED_MAX)(self._search)

    def classify(self, phase: str, code: int, status: str, text: str, sender: str = "") -> ReplyClass:
        """The class of an attempt's reply, or of its reason if ``code`` is 0.

        ``sender``: of the envelope, if it is known. A reply that names no other address may be about that one.
        """
        found = self.explain(phase, code, status, text).reply_class
        if sender and code and found in GONE:
            named = with_sender_named(text[:SEARCHED_MAX], sender)
            if named and self.explain(phase, code, status, named).reply_class is _C.INVALID_SENDER:
                return _C.INVALID_SENDER
        return found

    def explain(self, phase: str, code: int, status: str, text: str) -> Classified:
        """The class, and the rule that gave it."""
        return self._cached(phase, code, status, text[:SEARCHED_MAX])

    def _explain(self, phase: str, code: int, status: str, text: str) -> Classified:
        if not code and phase == Phase.CONNECT and SAID in text:
            code, status, text = quoted_reply(text)
        if not code:
            return Classified(_local_class(phase, status), None)
        status = status or embedded_status(code, text)
        whole = searched(code, status, text)
        words, with_links = plain_words(whole), plain_words(whole, links=True)
        first = self._first(words, phase, code, status, default=len(self.rules))
        if first == len(self.rules) and words != with_links:
            first = self._first(with_links, phase, code, status, default=first)
        for number in self._bare:
            if number >= first:
                break
            if self.rules[number].allows(phase, code, status):
                first = number
                break
        if first == len(self.rules):
            return Classified(_C.OTHER, None)
        return Classified(self.rules[first].reply_class, self.rules[first])

    def _first(self, text: str, phase: str, code: int, status: str, *, default: int) -> int:
        """The first rule with a pattern in ``text`` whose other conditions hold."""
        for number in self._owners_of(text):
            if self.rules[number].allows(phase, code, status):
                return number
        return default

    def _search(self, text: str) -> tuple[int, ...]:
        """The rules whose patterns are in ``text``, in order."""
        found, barred = set(), set()
        for place in self._patterns.matches(text):
            if place < len(self._owners):
                found.add(self._owners[place])
            else:
                barred.add(self._barred[place - len(self._owners)])
        return tuple(sorted(found - barred))


NO_RULES = ReplyClassifier(())


def classified_row(classifier: ReplyClassifier, text: str, phase: str = "") -> dict[str, Any]:
    """The row that ``zonemta classify`` and the API print for a reply. Raises ValueError for one without a code.

    ``phases``: without ``phase``, those in which the reply has another class, with that.
    """
    reply = read_reply(text)
    found = classifier.explain(phase, reply.code, reply.status, reply.text)
    in_phases = {
        each.value: classifier.classify(each, reply.code, reply.status, reply.text)
        for each in (() if phase else Phase)
    }
    names, rule = NAMES[found.reply_class], found.rule
    return {
        "class": found.reply_class,
        "kumomta": names.kumomta,
        "powermta": names.powermta,
        "code": reply.code,
        "status": reply.status,
        "text": reply.text,
        "file": rule.source if rule is not None else "",
        "line": rule.line if rule is not None else 0,
        "phases": {each: name for each, name in in_phases.items() if name != found.reply_class},
    }


def _local_class(phase: str, status: str) -> ReplyClass:
    """The class of a reason of this relay, whose status is set by ``delivery.dns``, ``delivery.endpoints`` or ``transports``."""
    if phase == "operator":
        return _C.OTHER
    if status == _NO_MX:
        return _C.BAD_DOMAIN
    if phase == Phase.CONNECT and status[2:] == "7.0":  # credentials that cannot be used
        return _C.POLICY
    return _LOCAL.get(status[2:], _C.OTHER)
