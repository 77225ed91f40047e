"""An SMTP reply in a header field of HTTP, as python-slimta's edge and relay write it. Pure.

    X-Smtp-Reply: 250; message="2.0.0 Ok: queued as 019a…"

Source: python-slimta, slimta/edge/wsgi.py and slimta/relay/http.py.
"""

import base64
import binascii
import re

from zonemta_py.smtp.reply import Reply, make_reply, printable

FIELD = "X-Smtp-Reply"
SENDER_FIELD = "X-Envelope-Sender"
RECIPIENT_FIELD = "X-Envelope-Recipient"
EHLO_FIELD = "X-Ehlo"

UNUSABLE = frozenset(
    (401, 403, 404, 405, 407, 415)
)  # a wrong address or token: ours to mend, no recipient's fault

_FIELD = re.compile(r"\s*([2-5]\d\d)\s*(?:;(.*))?\Z", re.DOTALL)
_MESSAGE = re.compile(r"\s*message\s*=\s*\"((?:[^\"\\]|\\.)*)\"")


def write_reply(reply: Reply) -> str:
    """The field's value; characters that a header field cannot hold are replaced."""
    text = " ".join(part for part in (reply.status, reply.text) if part)
    quoted = text.encode("ascii", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
    return f'{reply.code}; message="{quoted}"'


def read_reply(value: str) -> Reply | None:
    """The reply in a field's value; None when it is none."""
    match = _FIELD.match(value)
    if match is None:
        return None
    message = _MESSAGE.match(match[2] or "")
    text = re.sub(r"\\(.)", r"\1", message[1]) if message else ""
    return make_reply(int(match[1]), text)


def status_of(reply: Reply) -> int:
    """The HTTP status that goes with a reply to a message."""
    if reply.completed:
        return 204
    if reply.code < 500:
        return 503
    return 401 if reply.code == 535 else 500


def reply_of(status: int, reason: str) -> Reply:
    """What a server meant that said nothing but an HTTP status."""
    text = printable(f"the HTTP server answered {status} {reason}")
    if 200 <= status < 300:
        return Reply(250, "2.0.0", text)
    if 400 <= status < 500 and status not in UNUSABLE | {408, 429}:  # the latter two: ask again
        return Reply(550, "5.0.0", text)
    return Reply(451, "4.0.0", text)


def encode_address(address: str) -> str:
    """An address in an envelope field."""
    return base64.b64encode(address.encode()).decode()


def decode_address(value: str) -> str:
    """The address in an envelope field. Raises ValueError."""
    try:
        return base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise ValueError(f"{value[:40]!r} is not base64 of an address") from exc
