"""The text of a reply: what patterns are searched in, and the reply that a log line or the text of a session has. Pure."""

import re

from zonemta_py.smtp import verp
from zonemta_py.smtp.reply import Reply, make_reply

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
    """What patterns are searched in: ``CODE STATUS TEXT``, cut, with single spaces and plain apostrophes."""
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
    own = verp.base(sender).lower()
    if any(each.lower() != own and not verp.contract(each, sender) for each in found):
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
