"""Classifies replies to failures: the reason, from code, enhanced status and text of a reply. Pure.

The text takes precedence over the status, because peers use 5.7.1 and 4.7.0 for everything.
Source of the statuses: RFC 3463, RFC 7372 (authentication), RFC 7505 (null MX).
"""

import re
from enum import StrEnum
from functools import lru_cache


class Reason(StrEnum):
    """Classes of replies; the values are in reports and suppression files."""

    NO_ADDRESS = "no such address"
    NO_DOMAIN = "no such domain"
    MAILBOX_FULL = "mailbox full"
    GREYLISTED = "greylisted"
    RATE_LIMITED = "rate limited"
    BLOCKED = "sender blocked"
    AUTHENTICATION = "authentication"
    CONTENT = "content"
    TOO_LARGE = "too large"
    RELAYING = "relaying denied"
    TLS = "tls"
    NETWORK = "network"
    PEER_DOWN = "peer not working"
    POLICY = "policy"
    OTHER = "other"


_TEXTS = tuple(
    (reason, re.compile(pattern, re.IGNORECASE))
    for reason, pattern in (
        (Reason.GREYLISTED, r"gr[ea]y.?list"),
        (Reason.MAILBOX_FULL, r"(mail)?box\S* (is )?(\w+ )?full|quota|out of storage|insufficient (disk|storage)"),
        (Reason.RATE_LIMITED, r"too many|rate.?limit|throttl|too (fast|much)|unusual rate|slow down|limit exceeded|concurren"),
        (Reason.AUTHENTICATION, r"\b(spf|dkim|dmarc|ptr)\b|reverse dns|unauthenticated"),
        (Reason.BLOCKED, r"black.?list|block.?list|\bdnsbl|\brbl\b|spamhaus|reputation|\bblocked\b|banned|listed (at|by|in|on)"),
        (Reason.TOO_LARGE, r"too (large|big)|size (limit|exceeds)|exceeds .{0,20}size"),
        (Reason.RELAYING, r"relay(ing)? (access )?(denied|not)|not (allowed|permitted) to relay|unable to relay"),
        (Reason.TLS, r"\b(must issue a )?starttls\b|tls (is )?required|certificate"),
        (
            Reason.NO_ADDRESS,
            r"(user|mailbox|recipient|account|address)\S* .{0,40}(unknown|not (found|exist)|disabled|no longer|inactive|unavailable)"
            r"|(unknown|invalid|no such|no) (local )?(user|mailbox|recipient|address|account)|does ?n.t (exist|have)",
        ),
        (Reason.CONTENT, r"\bspam|virus|malware|phish|\bcontent\b|suspicious|unsolicited"),
        (Reason.NO_DOMAIN, r"(domain|host) .{0,20}(not found|unknown|not exist)|null mx|accepts no mail|no mail (server|host)"),
    )
)  # fmt: skip

_STATUSES = {
    "1.1": Reason.NO_ADDRESS, "1.3": Reason.NO_ADDRESS, "1.6": Reason.NO_ADDRESS, "2.1": Reason.NO_ADDRESS,
    "1.2": Reason.NO_DOMAIN, "1.10": Reason.NO_DOMAIN, "4.4": Reason.NO_DOMAIN, "2.2": Reason.MAILBOX_FULL,
    "2.3": Reason.TOO_LARGE, "3.4": Reason.TOO_LARGE, "7.20": Reason.AUTHENTICATION, "7.21": Reason.AUTHENTICATION,
    "7.22": Reason.AUTHENTICATION, "7.23": Reason.AUTHENTICATION, "7.25": Reason.AUTHENTICATION,
    "7.26": Reason.AUTHENTICATION, "7.27": Reason.AUTHENTICATION, "7.28": Reason.RATE_LIMITED,
    "4.5": Reason.RATE_LIMITED,
}  # fmt: skip
_CLASSES = {"3": Reason.PEER_DOWN, "4": Reason.NETWORK, "6": Reason.CONTENT, "7": Reason.POLICY}


@lru_cache(maxsize=1 << 16)
def reason_of(code: int, status: str, reply: str) -> Reason:
    """The class of a reply; ``code`` is 0 when no server answered."""
    if code == 0:
        return Reason.NO_DOMAIN if status.endswith((".1.2", ".1.10", ".4.4")) else Reason.NETWORK
    for reason, pattern in _TEXTS:
        if pattern.search(reply):
            return reason
    _, _, detail = status.partition(".")
    if detail in _STATUSES:
        return _STATUSES[detail]
    return _CLASSES.get(detail.partition(".")[0], Reason.PEER_DOWN if code == 421 else Reason.OTHER)
