"""SMTP replies and envelopes in HTTP header fields, in the form of python-slimta's edge and relay. Pure.

    X-Smtp-Reply: 250; message="2.0.0 Ok: queued as 019a…"

Source: python-slimta, slimta/edge/wsgi.py and slimta/relay/http.py.
"""

import base64
import binascii
import re
from datetime import datetime
from math import ceil

from zonemta_py.smtp.reply import Reply, make_reply, printable

FIELD = "X-Smtp-Reply"
SENDER_FIELD = "X-Envelope-Sender"
RECIPIENT_FIELD = "X-Envelope-Recipient"
EHLO_FIELD = "X-Ehlo"

# A wrong URL or token: an error of configuration, not of the recipient.
UNUSABLE = frozenset((401, 403, 404, 405, 407, 415))
_RETRY = frozenset((408, 429))

_AGAIN = re.compile(r", again at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\Z")
_KEY_USED = "This submission key was used for another message"
_FIELD = re.compile(r"\s*([2-5]\d\d)\s*(?:;(.*))?\Z", re.DOTALL)
_MESSAGE = re.compile(r"\s*message\s*=\s*\"((?:[^\"\\]|\\.)*)\"")


def write_reply(reply: Reply) -> str:
    """The value of X-Smtp-Reply for ``reply``; characters that are not ASCII are replaced."""
    text = " ".join(part for part in (reply.status, reply.text) if part)
    quoted = text.encode("ascii", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
    return f'{reply.code}; message="{quoted}"'


def read_reply(value: str) -> Reply | None:
    """The reply in the value of X-Smtp-Reply, or None if it is malformed."""
    match = _FIELD.match(value)
    if match is None:
        return None
    message = _MESSAGE.match(match[2] or "")
    text = re.sub(r"\\(.)", r"\1", message[1]) if message else ""
    return make_reply(int(match[1]), text)


def status_of(reply: Reply) -> int:
    """The HTTP status of a response with ``reply``."""
    if reply.completed:
        return 204
    if reply.code == 450 and _AGAIN.search(reply.text):
        return 429
    if reply.code < 500:
        return 503
    if reply.code == 550 and reply.text.startswith(_KEY_USED):
        return 409
    return 401 if reply.code == 535 else 500


def retry_after_s(reply: Reply, now_ms: int) -> int | None:
    """Seconds until the time that a refusal because of a limit names; None for another reply."""
    match = _AGAIN.search(reply.text) if reply.code == 450 else None
    if match is None:
        return None
    try:
        again_ms = datetime.fromisoformat(match[1]).timestamp() * 1000
    except ValueError:  # a reply of a policy or a scanner
        return None
    return max(1, ceil((again_ms - now_ms) / 1000))


def reply_of(status: int, reason: str) -> Reply:
    """The reply for a response without X-Smtp-Reply."""
    text = printable(f"the HTTP server answered {status} {reason}")
    if 200 <= status < 300:
        return Reply(250, "2.0.0", text)
    if 400 <= status < 500 and status not in UNUSABLE | _RETRY:
        return Reply(550, "5.0.0", text)
    return Reply(451, "4.0.0", text)


def encode_address(address: str) -> str:
    """An address in the encoding of envelope fields, base64."""
    return base64.b64encode(address.encode()).decode()


def decode_address(value: str) -> str:
    """The address in the value of an envelope field. Raises ValueError."""
    try:
        return base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise ValueError(f"{value[:40]!r} is not base64 of an address") from exc
