"""The lines of an SMTP dialogue for a reader, from the bytes of both sides: without bodies and without secrets. Pure.

A body becomes its size, what AUTH is given ``[secret]``: all but the name of a mechanism that is known, as some clients leave that
out. A reply that repeats it does not show it either. Commands and replies are matched in order (RFC 2920), so a body
begins where the reply to DATA says so.
"""

from collections import deque
from collections.abc import Iterator

from zonemta_py.core.text import SECRET, escaped

LINE_MAX = 1000  # characters that are shown
UNREAD_MAX = 65_536  # bytes without an end of line, or after a DATA or AUTH that was not answered
PENDING_MAX = 1000  # commands without a reply
_MECHANISMS = frozenset((
    "PLAIN", "LOGIN", "CRAM-MD5", "DIGEST-MD5", "SCRAM-SHA-1", "SCRAM-SHA-1-PLUS", "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS",
    "XOAUTH2", "OAUTHBEARER", "EXTERNAL", "ANONYMOUS", "GSSAPI", "NTLM",
))  # fmt: skip
_REPEATED_MIN = (
    4  # bytes of a secret that is looked for in the next reply: shorter ones are in many words
)
_VERBS = frozenset(
    [
        "HELO",
        "EHLO",
        "LHLO",
        "MAIL",
        "RCPT",
        "DATA",
        "RSET",
        "NOOP",
        "QUIT",
        "VRFY",
        "EXPN",
        "HELP",
        "STARTTLS",
        "AUTH",
        "BDAT",
        "ETRN",
        "XCLIENT",
        "XFORWARD",
        "PROXY",
    ]
)  # other lines may be a part of a message, and are shown as their size
_BODY_END = b"\r\n.\r\n"


class DialogueLines:
    """The lines of one dialogue. ``in_body``, ``in_secret``: the kind of the next bytes of a client whose dialogue has begun before."""

    def __init__(self, *, in_body: bool = False, in_secret: bool = False) -> None:
        self._of_client = bytearray()
        self._of_server = bytearray()
        self._pending: deque[str] = deque(
            maxlen=PENDING_MAX
        )  # verbs; a hint only: the code of a reply decides
        self._in_body = in_body
        self._in_secret = in_secret
        self._waits = False  # for the reply to DATA or AUTH
        self._secrets: tuple[bytes, ...] = ()  # of the last AUTH
        self._body_bytes = 0
        self._tail = b"" if in_body else b"\r\n"  # of the body

    def client(self, data: bytes) -> Iterator[str]:
        """The lines that are complete now."""
        self._of_client += data
        while self._of_client:
            if self._in_body:
                yield from self._body()
            elif self._waits or b"\n" not in self._of_client:
                if len(self._of_client) > UNREAD_MAX:
                    self._of_client.clear()
                return
            else:
                line, _, rest = self._of_client.partition(b"\n")
                self._of_client = rest
                yield self._command(bytes(line).rstrip(b"\r"))

    def _body(self) -> Iterator[str]:
        data = self._tail + self._of_client
        at = data.find(_BODY_END)
        if at < 0:
            self._body_bytes += len(self._of_client)
            self._tail = data[-len(_BODY_END) + 1 :]
            self._of_client.clear()
            return
        used = at + len(_BODY_END) - len(self._tail)
        yield f"[{self._body_bytes + used} bytes of message]"
        del self._of_client[:used]
        self._in_body, self._body_bytes, self._tail = False, 0, b"\r\n"
        self._pending.append(".")

    def _command(self, line: bytes) -> str:
        if self._in_secret:
            self._in_secret, self._waits = False, True
            self._secrets = (line.strip(),)
            self._pending.append("AUTH")
            return SECRET
        words = line.split(maxsplit=2)
        verb = words[0].upper().decode("latin-1") if words else ""
        self._pending.append(verb)
        self._waits = verb in ("DATA", "AUTH")
        if verb not in _VERBS:
            return f"[{len(line)} bytes]"
        if verb == "AUTH":
            return self._auth(words[1:])
        return readable(line)

    def _auth(self, words: list[bytes]) -> str:
        """The command AUTH: the mechanism, if it is one, and no more."""
        known = bool(words) and words[0].upper().decode("latin-1") in _MECHANISMS
        self._secrets = tuple(words[known:])
        shown = ["AUTH", *(word.decode("latin-1") for word in words[:known])]
        return " ".join(shown + [SECRET] * bool(self._secrets))

    def server(self, data: bytes) -> Iterator[str]:
        """The lines that are complete now; with what the client has sent before the reply to DATA."""
        self._of_server += data
        while b"\n" in self._of_server:
            line, _, rest = self._of_server.partition(b"\n")
            self._of_server = rest
            yield readable(self._without_secrets(bytes(line).rstrip(b"\r")))
            if line[3:4] != b"-":
                self._replied(bytes(line[:3]))
        if len(self._of_server) > UNREAD_MAX:
            self._of_server.clear()

    def _without_secrets(self, line: bytes) -> bytes:
        for secret in self._secrets:
            if len(secret) >= _REPEATED_MIN:
                line = line.replace(secret, SECRET.encode())
        return line

    def _replied(self, code: bytes) -> None:
        verb = self._pending.popleft() if self._pending else ""
        if code == b"354":
            self._waits, self._in_body = False, True
        elif code == b"334":
            self._waits, self._in_secret = False, True
        elif verb in ("DATA", "AUTH"):
            self._waits = False


def readable(line: bytes) -> str:
    """A line for a terminal: one line, without control characters."""
    text = line.decode("utf-8", "backslashreplace")
    return escaped(text[:LINE_MAX]) + ("…" if len(text) > LINE_MAX else "")
