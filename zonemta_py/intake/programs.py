"""Mail from a program in this process: the same checks, stamps, routes and promises as over SMTP."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable

from zonemta_py.config.schema import Config, Listener
from zonemta_py.errors import LocalError
from zonemta_py.intake.claim import Claim
from zonemta_py.intake.commands import Rcpt
from zonemta_py.intake.door import Door
from zonemta_py.intake.ingest import UNDER_WAY, Draft, Ingest
from zonemta_py.queue.records import Origin
from zonemta_py.routing import Router
from zonemta_py.smtp.address import AddressError, normalise

PROTOCOL = "local"  # in the Received field
PROGRAM_IP = "127.0.0.1"


class NotAccepted(LocalError):
    """The message was not taken; nothing of it is in the queue. The text is what SMTP would have replied."""


async def enqueue(
    queue: Door,
    router: Router,
    config: Config,
    hostname: str,
    *,
    sender: str,
    recipients: Iterable[str],
    message: bytes | AsyncIterable[bytes],
    key: str = "",
    user: str = "",
) -> str:
    """Accept a message; its queue id, once it is on disk.

    ``message``: header, empty line, body; lines end in CRLF or LF. ``key``: a submission key; a repeat is
    answered with the first message's id. Raises NotAccepted.
    """
    settings = config.listeners[0] if config.listeners else Listener()
    try:
        wanted = {address: Rcpt(address) for address in map(normalise, recipients)}
        draft = Draft(
            sender=normalise(sender) if sender else "",
            recipients=list(wanted.values()),
            smtputf8=True,
            origin=Origin("", PROGRAM_IP, hostname, user, PROTOCOL),
            trusted_routing=True,
            hostname=hostname,
            max_size=settings.max_message_size,
            max_hops=settings.max_hops,
            key_headers=settings.submission_key.headers,
            dkim_domains=frozenset(entry.domain for entry in config.dkim.keys if entry.domain),
        )
    except AddressError as exc:
        raise NotAccepted(f"501 5.1.3 {exc}") from exc
    if not draft.recipients:
        raise NotAccepted("503 5.5.1 No recipient")
    claim = Claim(queue.submissions, user or PROGRAM_IP, settings.submission_key.window)
    if key:
        lookup = claim.take(key)
        await lookup
        if lookup.busy:
            raise NotAccepted(UNDER_WAY)
    ingest = Ingest(queue, router, draft, claim)
    try:
        async for octets in _with_line_ends(message):
            wait_for = ingest.feed(octets)
            if wait_for is not None:
                await wait_for
        ingest.finish()
        await ingest
    finally:
        ingest.abort()
    if ingest.refusal:
        raise NotAccepted(ingest.refusal)
    return ingest.reply.split(" queued as ", 1)[1].split(" ", 1)[0]


async def _with_line_ends(message: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The message in pieces, every line ended by CRLF."""
    held = b""
    async for chunk in _pieces(message):
        octets = held + chunk
        held = b"\r" if octets.endswith(b"\r") else b""
        yield octets[: len(octets) - len(held)].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    if held:
        yield held


async def _pieces(message: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(message, bytes):
        yield message
        return
    async for chunk in message:
        yield chunk
