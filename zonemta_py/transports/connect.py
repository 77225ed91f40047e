"""Opening of a session: connect from a source address, greet, encrypt, authenticate.

The adapter of aiosmtplib, which does these steps; the resulting ``SmtpSession`` takes over the connection with a protocol of its own.

Steps::

    connect ─▶ greeting ─▶ EHLO ─▶ STARTTLS, EHLO ─▶ AUTH ─▶ session, ready for MAIL
       └──────────┴──── a failure at any step ────┴──────▶ DestinationFailed, connection closed

Invariants:

- Every failure is a DestinationFailed with a text for operators; SessionRefused has the reply of the peer, TlsFailed says that
  another attempt without TLS may succeed, LoopsBack that the peer is this relay.
- The socket is closed on every way out but success, a cancellation included.
- A password is sent only over TLS, unless ``tls`` is off.
- ``opportunistic`` encrypts without verification and continues in clear text where STARTTLS is not offered; ``required`` and
  ``implicit`` verify the certificate or fail (RFC 7435 section 4).
- Bytes that a peer sends with its greeting end the session: they would be taken for replies (RFC 5321 section 4.3.1).

Callers: ``delivery.session_opener``, which chooses targets and repeats without TLS; ``submit`` and the pipeline's ``send``.

Example::

    options = SessionOptions("relay.example", None, "opportunistic", Timeouts())
    session = await open_session(Target("mx.b.example", "192.0.2.1", 25), options)

Source: RFC 5321 sections 3.1 and 4.1.1.1, RFC 3207 (STARTTLS), RFC 4954 (AUTH), RFC 2033 (LMTP).
"""

import asyncio
import errno
import os
import socket
import ssl
import warnings
from base64 import b64encode
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import aiosmtplib

from zonemta_py.config.zones import Timeouts
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.core.text import SECRET
from zonemta_py.smtp.reply import Reply, make_reply
from zonemta_py.smtp.reply_class import SAID
from zonemta_py.transports.session import LmtpSession, SmtpSession
from zonemta_py.transports.tracing import SessionTrace


@dataclass(frozen=True, slots=True)
class Target:
    """One address of one host; with ``port`` 0, ``ip`` is the path of a Unix socket."""

    host: str
    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session. ``source`` None: the system chooses the source address.

    ``tls``: off, opportunistic (encrypt when offered, without verification), required (encrypt and
    verify, or fail) or implicit (as required, from the first byte). ``ca_file``: the authorities that are
    trusted then; None for those of the system. ``detects_loop``: a peer with this relay's name is refused.
    ``pipelining``: use it if it is offered.
    ``credentials``: name and password, or None. ``lmtp``: LHLO instead of EHLO.
    """

    ehlo: str
    source: str | None
    tls: str
    timeouts: Timeouts
    credentials: tuple[str, str] | None = None
    lmtp: bool = False
    ca_file: Path | None = None
    detects_loop: bool = False
    pipelining: bool = True


_LEGACY_SERVERS = 0x4  # SSL_OP_LEGACY_SERVER_CONNECT; Python 3.12 has a name for it


@cache
def opportunistic_context() -> ssl.SSLContext:
    """The context of sessions that take any certificate, and the best TLS that the peer can.

    The alternative is clear text, so old versions, short keys and weak signatures are better than nothing. Both ends
    still choose the best that they have in common (RFC 7435 section 4; Postfix's level ``may`` does the same).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # create_default_context reads the authorities
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings():  # ssl says that these versions are deprecated: they are
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.options |= _LEGACY_SERVERS
    return context


def verifying_context(ca_file: Path | None) -> ssl.SSLContext:
    """The context of sessions whose peer must have a certificate for its name; 0.1 s at the first call.

    A file that has changed is read again. Raises OSError and ssl.SSLError when it cannot be used.
    """
    return _verifying(ca_file, ca_file.stat().st_mtime_ns if ca_file is not None else 0)


@lru_cache(maxsize=64)
def _verifying(ca_file: Path | None, changed_ns: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


class _Client(aiosmtplib.SMTP):
    """With AUTH LOGIN as all servers take it: some refuse the name in the command."""

    async def auth_login(
        self, username: str | bytes, password: str | bytes, /, **options: Any
    ) -> aiosmtplib.SMTPResponse:
        """Send name and password, each as the answer to a question. Raises SMTPAuthenticationError."""
        response = await self.execute_command(b"AUTH", b"LOGIN", **options)
        for secret in (username, password):
            if response.code != 334:
                break
            raw = secret.encode() if isinstance(secret, str) else secret
            response = await self.execute_command(b64encode(raw), **options)
        if response.code != 235:
            raise aiosmtplib.SMTPAuthenticationError(response.code, response.message)
        return response


class SessionRefused(DestinationFailed):
    """A peer refused the session by ``reply``, at ``host`` and ``ip``, which was asked from ``source``."""

    def __init__(self, reply: Reply, target: Target, source: str) -> None:
        super().__init__(reply.code, reply.status or "4.4.0", f"{_where(target)}{SAID}{reply}")
        self.reply = reply
        self.host, self.ip, self.source = target.host, target.ip, source


class LoopsBack(DestinationFailed):
    """The peer calls itself what this relay calls itself: it is this relay."""


class TlsFailed(DestinationFailed):
    """STARTTLS was offered and failed; an opportunistic caller may connect again without TLS."""


async def open_session(
    target: Target,
    options: SessionOptions,
    *,
    context: ssl.SSLContext | None = None,
    trace: SessionTrace | None = None,
) -> SmtpSession:
    """A session that is ready for MAIL. ``context`` replaces the default TLS contexts. Raises DestinationFailed."""
    loop = asyncio.get_running_loop()
    if context is None:
        context = _context(options)
    sock = await _connect(loop, target, options)
    implicit = options.tls == "implicit"
    client = _Client(
        hostname=target.host if implicit else None,
        sock=sock,
        local_hostname=options.ehlo,
        timeout=options.timeouts.command,
        start_tls=False,
        use_tls=implicit,
        tls_context=context,
    )
    try:
        await _prepare(client, target, options, context, trace)
        # uvloop's transports are not subclasses of asyncio.Transport.
        transport = cast(asyncio.Transport | None, client.transport)
        if transport is None or transport.is_closing():
            raise DestinationFailed(0, "4.4.2", f"{_where(target)} closed the connection")
        kind = LmtpSession if options.lmtp else SmtpSession
        session = kind(loop, transport, _extensions(client, options), options.timeouts)
        transport.set_protocol(session)
        session.trace = trace
        return session
    except aiosmtplib.SMTPResponseException as exc:
        client.close()
        reply = make_reply(exc.code if 200 <= exc.code < 600 else 0, exc.message)
        raise SessionRefused(reply, target, options.source or "") from exc
    except (aiosmtplib.SMTPException, OSError, ValueError) as exc:
        client.close()
        sock.close()
        raise DestinationFailed(0, "4.4.2", f"{_where(target)}: {exc}") from exc
    except BaseException:
        client.close()
        sock.close()
        raise


async def _prepare(
    client: aiosmtplib.SMTP,
    target: Target,
    options: SessionOptions,
    context: ssl.SSLContext | None,
    trace: SessionTrace | None,
) -> None:
    """Greet, encrypt, authenticate. Raises what aiosmtplib raises, and DestinationFailed."""
    greeting = await _connect_greeted(client)
    _show(trace, "", greeting)
    await _greet(client, lmtp=options.lmtp)
    _show_greeted(trace, client, options)
    _refuse_itself(client, target, options)
    if options.tls in ("opportunistic", "required"):
        await _encrypt(client, target, options, context)
        if trace is not None and (tls := client.get_transport_info("cipher")) is not None:
            trace.said("C", "STARTTLS")
            trace.note(f"{tls[1]} with {tls[0]}")
            _show_greeted(trace, client, options)
    if options.credentials is not None:
        if options.tls != "off" and client.get_transport_info("sslcontext") is None:
            raise DestinationFailed(
                0, "4.7.0", f"{_where(target)} offers no TLS: the password is not sent"
            )
        _show(trace, f"AUTH {SECRET}", await client.login(*options.credentials))


def _extensions(client: aiosmtplib.SMTP, options: SessionOptions) -> dict[str, str]:
    """The extensions that the peer offers and this relay uses."""
    offered = client.esmtp_extensions
    if options.pipelining:
        return offered
    return {name: offered[name] for name in offered if options.pipelining or name != "pipelining"}


def _context(options: SessionOptions) -> ssl.SSLContext | None:
    """The context that verifies the peer; None without TLS. Raises DestinationFailed when the CA file cannot be used."""
    if options.tls == "off":
        return None
    if options.tls == "opportunistic":
        return opportunistic_context()
    try:
        return verifying_context(options.ca_file)
    except OSError as exc:  # ssl.SSLError is one
        raise DestinationFailed(0, "4.7.5", f"{options.ca_file}: {exc}") from exc


async def _connect(
    loop: asyncio.AbstractEventLoop, target: Target, options: SessionOptions
) -> socket.socket:
    family, address = socket.AF_INET6 if ":" in target.ip else socket.AF_INET, (target.ip, target.port)
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family if target.port else socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        if target.port:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options.source is not None:
            if hasattr(socket, "IP_BIND_ADDRESS_NO_PORT"):
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((options.source, 0))
        async with asyncio.timeout(options.timeouts.connect):
            await loop.sock_connect(sock, address if target.port else target.ip)
    except BaseException as exc:
        if sock is not None:
            sock.close()
        if isinstance(exc, OSError):  # TimeoutError is one
            raise _unreachable(target, options, exc) from exc
        raise
    return sock


def _unreachable(target: Target, options: SessionOptions, exc: OSError) -> DestinationFailed:
    if isinstance(exc, TimeoutError):
        text = f"{_where(target)}: connection timed out"
        return DestinationFailed(0, "4.4.1", text, timed_out=True)
    text = os.strerror(exc.errno) if exc.errno else str(exc)
    if options.source is not None and exc.errno == errno.EADDRNOTAVAIL:
        text = f"source address {options.source} is not on this machine"
    return DestinationFailed(0, "4.4.1", f"{_where(target)}: {text}")


def _show(trace: SessionTrace | None, command: str, response: aiosmtplib.SMTPResponse | None) -> None:
    """Trace a step that aiosmtplib has done."""
    if trace is not None:
        trace.said("C", command)
        if response is not None:
            *lines, last = response.message.splitlines() or [""]
            shown = [*(f"{response.code}-{line}" for line in lines), f"{response.code} {last}"]
            trace.said("S", "\n".join(shown))


def _show_greeted(trace: SessionTrace | None, client: aiosmtplib.SMTP, options: SessionOptions) -> None:
    verb = "LHLO" if options.lmtp else "EHLO"
    _show(trace, f"{verb} {options.ehlo}", client.last_ehlo_response)


async def _connect_greeted(client: aiosmtplib.SMTP) -> aiosmtplib.SMTPResponse:
    """Read the greeting. Bytes after it are refused: the peer must wait for a command (RFC 5321 section 4.3.1)."""
    try:
        greeting = await client.connect()
    except aiosmtplib.SMTPConnectError as exc:
        if isinstance(exc, aiosmtplib.SMTPResponseException):
            raise
        if isinstance(exc.__cause__, ssl.SSLError):
            raise aiosmtplib.SMTPServerDisconnected(f"TLS failed: {exc.__cause__}") from exc
        raise aiosmtplib.SMTPServerDisconnected("closed the connection before its greeting") from exc
    if client.protocol is not None and client.protocol._buffer:
        raise aiosmtplib.SMTPServerDisconnected("sent data after its greeting")
    return greeting


async def _greet(client: aiosmtplib.SMTP, *, lmtp: bool) -> None:
    if lmtp:
        await _greet_lmtp(client)
        return
    try:
        await client.ehlo()
    except aiosmtplib.SMTPHeloError as exc:
        if exc.code == 421 or not client.is_connected:
            raise
        await client.helo()


def _refuse_itself(client: aiosmtplib.SMTP, target: Target, options: SessionOptions) -> None:
    """Raises LoopsBack if the first word of the reply to EHLO is this relay's name (RFC 5321 section 4.1.1.1)."""
    answer = client.last_ehlo_response
    name = answer.message.partition("\n")[0].split(maxsplit=1)[:1] if answer is not None else []
    if options.detects_loop and [options.ehlo.lower()] == [word.lower() for word in name]:
        raise LoopsBack(0, "5.4.6", f"{_where(target)} is this relay: mail loops back", permanent=True)


async def _greet_lmtp(client: aiosmtplib.SMTP) -> None:
    """Send LHLO, whose reply has the form of EHLO's. Source: RFC 2033 section 4.1."""
    response = await client.execute_command(b"LHLO", (client.local_hostname or "localhost").encode())
    if response.code != 250:
        raise aiosmtplib.SMTPHeloError(response.code, response.message)
    client.last_ehlo_response = response


async def _encrypt(
    client: aiosmtplib.SMTP, target: Target, options: SessionOptions, context: ssl.SSLContext | None
) -> None:
    required = options.tls == "required"
    if not client.supports_extension("starttls"):
        if required:
            raise DestinationFailed(0, "5.7.10", f"{_where(target)} offers no TLS, which is required")
        return
    try:
        await client.starttls(server_hostname=target.host, tls_context=context)
        await _greet(client, lmtp=options.lmtp)  # some peers break at the first encrypted command
    except (aiosmtplib.SMTPException, OSError) as exc:
        raise TlsFailed(0, "4.7.5", f"{_where(target)}: STARTTLS failed: {exc}") from exc


def _where(target: Target) -> str:
    if not target.port:
        return target.ip
    at = f"[{target.ip}]:{target.port}"
    return f"{target.host}{at}" if target.host != target.ip else at
