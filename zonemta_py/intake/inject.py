"""Mail from a program in this process: the same checks, stamps, routes and promises as over SMTP."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence

from zonemta_py.config.schema import Config, Listener
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.idempotency import Claim
from zonemta_py.intake.message import UNDER_WAY, Draft, MessageReceiver
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.policies import EnvelopePolicy
from zonemta_py.queue.format.records import Origin
from zonemta_py.routing import Router
from zonemta_py.smtp import verp
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.commands import Rcpt

PROTOCOL = "local"  # in the Received field
PROGRAM_IP = "127.0.0.1"


class Injector:
    """A message on its way in from a program: ``begin``, ``write``, and then ``finish`` or ``abort``."""

    def __init__(
        self,
        queue: QueueClient,
        router: Router,
        config: Config,
        hostname: str,
        policies: Sequence[EnvelopePolicy] = (),
    ) -> None:
        self._queue = queue
        self._router = router
        self._config = config
        self._hostname = hostname
        self._policies = policies
        self._ingest: MessageReceiver | None = None
        self._held = b""  # a CR whose LF may follow

    async def begin(
        self,
        sender: str,
        recipients: Iterable[Rcpt],
        *,
        key: str = "",
        user: str = "",
        ret: str = "",
        envid: str = "",
        origin: Origin | None = None,
    ) -> None:
        """Envelope and submission key; ``origin`` when another than this program. Raises NotAccepted."""
        config = self._config
        settings = config.listeners[0] if config.listeners else Listener()
        try:
            wanted = [replace(rcpt, address=normalise(rcpt.address)) for rcpt in recipients]
            draft = Draft(
                sender=sender if sender in ("", verp.DOUBLE_BOUNCE) else normalise(sender),
                recipients=list({rcpt.address: rcpt for rcpt in wanted}.values()),
                smtputf8=True,
                origin=origin or Origin("", PROGRAM_IP, self._hostname, user, PROTOCOL),
                trusted_routing=True,
                hostname=self._hostname,
                max_size=settings.max_message_size,
                max_hops=settings.max_hops,
                ret=ret,
                envid=envid,
                key_headers=settings.submission_key.headers,
                policies=self._policies,
                dkim_domains=frozenset(entry.domain for entry in config.dkim.keys if entry.domain),
            )
        except AddressError as exc:
            raise NotAccepted(f"501 5.1.3 {exc}") from exc
        if not draft.recipients:
            raise NotAccepted("503 5.5.1 No recipient")
        submitter = draft.origin.submitter
        claim = Claim(self._queue.idempotency_keys, submitter, settings.submission_key.window)
        if key:
            lookup = claim.acquire(key)
            await lookup
            if lookup.busy:
                raise NotAccepted(UNDER_WAY)
        self._ingest = MessageReceiver(self._queue, self._router, draft, claim)

    @property
    def refusal(self) -> str:
        """Why the rest of the message need not come; empty as long as it may."""
        assert self._ingest is not None
        return self._ingest.refusal if self._ingest.hopeless else ""

    async def write(self, data: bytes) -> None:
        """The next octets: header, empty line, body; lines end in CRLF or LF."""
        assert self._ingest is not None
        octets = self._held + data
        self._held = b"\r" if octets.endswith(b"\r") else b""
        octets = octets[: len(octets) - len(self._held)]
        wait_for = self._ingest.feed(octets.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
        if wait_for is not None:
            await wait_for

    async def finish(self) -> str:
        """The message's queue id, once it is on disk. Raises NotAccepted."""
        assert self._ingest is not None
        ingest = self._ingest
        if self._held:
            ingest.feed(self._held)
        ingest.finish()
        await ingest
        if ingest.refusal:
            raise NotAccepted(ingest.refusal)
        return ingest.reply.split(" queued as ", 1)[1].split(" ", 1)[0]

    def abort(self) -> None:
        """Leave nothing; harmless after the end."""
        if self._ingest is not None:
            self._ingest.abort()


async def enqueue(
    handover: Injector,
    sender: str,
    recipients: Iterable[str],
    message: bytes | AsyncIterable[bytes],
    *,
    key: str = "",
    user: str = "",
) -> str:
    """Accept a whole message; its queue id, once it is on disk.

    ``key``: a submission key; a repeat is answered with the first message's id. Raises NotAccepted.
    """
    try:
        await handover.begin(sender, map(Rcpt, recipients), key=key, user=user)
        async for chunk in _pieces(message):
            await handover.write(chunk)
        return await handover.finish()
    finally:
        handover.abort()


async def _pieces(message: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(message, bytes):
        yield message
        return
    async for chunk in message:
        yield chunk
