"""A sink that encrypts and asks for a password, and remembers what came in clear text."""

import asyncio
import ssl
from base64 import b64decode
from typing import Any

from zonemta_py.sink.server import EXTENSIONS, Sink, SinkSession

TLS_EXTENSIONS = (*EXTENSIONS, "STARTTLS")


class TlsSink(Sink):
    """A receiver with STARTTLS.

    ``context``: its certificate. ``cuts``: how many handshakes it ends before they begin. ``requires``: its reply to MAIL
    outside of TLS, if it takes none there. ``login``: AUTH, by LOGIN without an initial response only. ``envelopes`` and ``passwords`` have whether they came by TLS.
    ``logins``: each recipient, with the password of its session.
    """

    def __init__(
        self,
        *arguments: Any,
        context: ssl.SSLContext | None = None,
        cuts: int = 0,
        requires: str = "",
        login: bool = False,
        **options: Any,
    ) -> None:
        extensions = TLS_EXTENSIONS if context is not None or cuts else EXTENSIONS
        super().__init__(*arguments, extensions=extensions, **options)
        self.context = context
        self.cuts = cuts
        self.requires = requires
        self.login = login
        self.envelopes: list[tuple[str, bool]] = []
        self.passwords: list[tuple[str, bool]] = []
        self.logins: list[tuple[str, str]] = []
        self.handshakes: list[str] = []  # versions

    def session(self) -> SinkSession:
        """The protocol of a new connection."""
        return TlsSession(self)


class TlsSession(SinkSession):
    """One connection of a TlsSink."""

    _sink: TlsSink
    _asked = ""  # for the name, or the password, by AUTH LOGIN
    _secure = False
    _password = ""

    def _command(self, line: str) -> None:
        sink, verb = self._sink, line.partition(" ")[0].upper()
        if self._asked:
            self._login(line)
        elif verb == "STARTTLS":
            self._starttls()
        elif verb == "EHLO" and (sink.login or self._secure):
            names = [sink.hostname, *(n for n in sink.extensions if n != "STARTTLS" or not self._secure)]
            names += ["AUTH LOGIN"] if sink.login else []
            self._reply("\r\n".join([*(f"250-{n}" for n in names[:-1]), f"250 {names[-1]}"]))
        elif verb == "AUTH":
            self._asked = "name"
            self._reply(
                "334 VXNlcm5hbWU6" if line.upper() == "AUTH LOGIN" else "501 5.5.2 no initial response"
            )
            self._asked = "name" if line.upper() == "AUTH LOGIN" else ""
            if not self._asked:
                sink.passwords.append((line, self._secure))
        elif verb == "MAIL":
            sink.envelopes.append((line.partition(">")[0].partition("<")[2], self._secure))
            if sink.requires and not self._secure:
                self._reply(sink.requires)
            else:
                super()._command(line)
        else:
            if verb == "RCPT":
                sink.logins.append((line.partition(">")[0].partition("<")[2], self._password))
            super()._command(line)

    def _login(self, line: str) -> None:
        if self._asked == "name":
            self._asked = "password"
            self._reply("334 UGFzc3dvcmQ6")
        else:
            self._password = b64decode(line).decode()
            self._sink.passwords.append((self._password, self._secure))
            self._asked = ""
            self._reply("235 2.7.0 Accepted")

    def _starttls(self) -> None:
        sink = self._sink
        if sink.cuts:
            sink.cuts -= 1
            self._reply("220 2.0.0 Go on")
            self._flush()
            self._transport.close()
            return
        self._reply("220 2.0.0 Go on")
        self._flush()
        self._stalled = True
        task = asyncio.get_running_loop().create_task(self._encrypt())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _encrypt(self) -> None:
        assert self._sink.context is not None
        self._transport.pause_reading()
        encrypted = await asyncio.get_running_loop().start_tls(
            self._transport, self, self._sink.context, server_side=True
        )
        assert isinstance(encrypted, asyncio.Transport)
        self._transport = encrypted
        self._secure, self._stalled = True, False
        self._sink.handshakes.append(encrypted.get_extra_info("ssl_object").version())
        self._advance()  # what came meanwhile


def server_context(cert: Any, key: Any) -> ssl.SSLContext:
    """The context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
