"""Command lines from the bytes of a client, and the end of a session that sends none."""

import re

from zonemta_py.smtp.commands import Refused

UNREAD_MAX = 65_536  # bytes buffered during a pause; then the transport stops reading, too
COMMAND_MAX = 4096  # bytes: RFC 5321 asks for 512, parameters and UTF-8 need more

NOT_SMTP = "421 4.7.0 This is not SMTP"

_FOREIGN = re.compile(
    r"[^A-Za-z]|(?:GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS|TRACE|CONNECT|PROXY|SSH-)", re.I
)


class CloseConnection(Exception):
    """The session is over: the replies so far and ``reply`` are sent, and the connection is closed."""

    def __init__(self, reply: str = "") -> None:
        super().__init__(reply)
        self.reply = reply


def take_line(unread: bytearray) -> str | None:
    """Remove the next whole line, without its end; None until it is complete.

    Raises Refused for a line that is removed without being a command, and CloseConnection.
    """
    end = unread.find(b"\n")
    if end < 0:
        if len(unread) > UNREAD_MAX:
            raise CloseConnection("500 5.5.6 Line too long")
        return None
    raw = unread[: end + 1]
    del unread[: end + 1]
    if len(raw) <= COMMAND_MAX and b"\0" not in raw:
        return raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
    if not raw[:1].isalpha():
        raise CloseConnection(NOT_SMTP)
    raise Refused("500 5.5.6 Line too long" if len(raw) > COMMAND_MAX else "500 5.5.2 NUL in a command")


def unknown_command(line: str) -> Exception:
    """What to raise for a line whose verb is not known.

    A web browser can be made to send the verbs of HTTP, with SMTP commands after them.
    """
    if _FOREIGN.match(line):
        return CloseConnection(NOT_SMTP)
    return Refused("500 5.5.2 Command not recognized")
