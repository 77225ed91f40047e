r"""Mail from a program in this process: the same checks, stamps, zones and guarantees as over SMTP.

States of an ``Injector``, which is for one message: new ─ begin ─▶ receiving ─ write … ─ finish ─▶ ended; ``abort`` ends it at any time.

Invariants:

- The steps are those of a session: suspension, sender, limits, space, key, then ``MessageReceiver``; a refusal has the same reply.
- ``finish`` returns an id only when the message is on disk, or a repetition has that of the first one.
- A message that is not finished is aborted: callers call ``abort`` in the end, which does nothing after ``finish``.

Callers: ``intake.http``, the library's ``enqueue``, and ``dequeue`` for what a program sends.

Example: ``await enqueue(injector, "a@a.example", ["b@b.example"], b"Subject: Hello\n\nText")`` returns the queue id.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict, Unpack

from zonemta_py.config.schema import Config, ListenerSettings
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.context import NO_SPACE, check_suspended
from zonemta_py.intake.message import UNDER_WAY, UNWRITABLE, MessageReceiver
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import MessageScanner
from zonemta_py.intake.stamping import MessageEnvelope, make_rules
from zonemta_py.intake.submission_key import KEY_FIELD, SubmissionKeyClaim
from zonemta_py.policies import EnvelopePolicy
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.submitters.limits import client_of
from zonemta_py.routing import Router
from zonemta_py.smtp.address import DOUBLE_BOUNCE, AddressError, normalise
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.reports.dsn import UNSET, parse_notify, valid_envid, valid_orcpt
from zonemta_py.storage.open import DiskSpace

PROTOCOL = "local"  # in the Received field
PROGRAM_IP = "127.0.0.1"


class NamedKey(NamedTuple):
    """A submission key that does not come from a message.

    ``owner``: whose it is when the origin has no tenant, instead of the user or the address. ``source``: the field that it is from, or is like.
    """

    value: str
    owner: str = ""
    source: str = KEY_FIELD


class Injector:
    """One message from a program: ``begin``, ``write``, then ``finish`` or ``abort``.

    The limits are those of the first listener.
    """

    def __init__(
        self,
        queue: QueueClient,
        router: Router,
        config: Config,
        hostname: str,
        policies: Sequence[EnvelopePolicy] = (),
        disk_space: DiskSpace | None = None,
        *,
        scanner: MessageScanner | None = None,
    ) -> None:
        """``disk_space``: None when the queue's disk has been asked already. ``scanner``: None scans nothing."""
        listener = config.listeners[0] if config.listeners else ListenerSettings()
        self._queue = queue
        self._rules = make_rules(config, listener, hostname, router, policies)
        self._key_window_s = listener.submission_key.window
        self._max_recipients = listener.max_recipients
        self._disk_space = disk_space
        self._scanner = scanner
        self._receiver: MessageReceiver | None = None
        self._pending_cr = b""  # a CR at the end of the last bytes: LF may follow

    async def begin(
        self,
        sender: str,
        recipients: Iterable[Rcpt],
        *,
        key: "str | NamedKey" = "",
        user: str = "",
        ret: str = "",
        envid: str = "",
        origin: Origin | None = None,
    ) -> None:
        """Set envelope and submission key; ``origin`` when it is not this program. Raises NotAccepted.

        A program without a user is of no tenant: it may send as any address, and its mail is not signed for a
        tenant's domain.
        """
        senders, is_program = self._rules.senders, origin is None
        origin = origin or self.program_origin(user)
        if not origin.tenant and (user or not is_program):
            origin = origin._replace(tenant=senders.tenant_of(origin.user, origin.client_ip))
        try:
            normalised = [replace(rcpt, address=normalise(rcpt.address)) for rcpt in recipients]
            if sender not in ("", DOUBLE_BOUNCE):
                sender = normalise(sender)
        except AddressError as exc:
            raise NotAccepted(f"501 5.1.3 {exc}") from exc
        if not normalised:
            raise NotAccepted("503 5.5.1 No recipient")
        check_suspended(self._queue, origin.tenant, origin.user)
        trusted = not origin.listener or senders.is_host_of(origin.tenant, origin.client_ip)
        verified = self._queue.verified
        senders.check_sender(origin.tenant, origin.submitter, sender, verified, trusted=trusted)
        refusal = self._queue.limits.closed(client_of(origin))
        if refusal:
            raise NotAccepted(refusal)
        if ret not in ("", "FULL", "HDRS"):
            raise NotAccepted(f"501 5.5.4 RET={ret} is neither FULL nor HDRS")
        if envid and not valid_envid(envid):
            raise NotAccepted(f"501 5.5.4 ENVID={envid} is not xtext (RFC 3461 section 4)")
        unique = list({rcpt.address: rcpt for rcpt in normalised}.values())
        self._check_room(len(unique))
        envelope = MessageEnvelope(
            sender=sender, recipients=unique, origin=origin, smtputf8=True, ret=ret, envid=envid
        )
        named = NamedKey(key) if isinstance(key, str) else key
        owner = "" if origin.tenant else named.owner
        claim = SubmissionKeyClaim(self._queue.submission_keys, origin, self._key_window_s, owner)
        if named.value:
            refuses_other = named.source.lower() in self._rules.refused_keys
            lookup = claim.acquire(named.value, refuses_other=refuses_other)
            await lookup
            if lookup.busy:
                raise NotAccepted(UNDER_WAY)
        self._receiver = MessageReceiver(self._queue, self._rules, envelope, claim, self._scanner)

    def program_origin(self, user: str = "", tenant: str = "") -> Origin:
        """The origin of mail that this program sends for a user, or continues to send for ``tenant``."""
        return Origin(
            listener="", client_ip=PROGRAM_IP, helo=self._rules.hostname, user=user, protocol=PROTOCOL, tenant=tenant,
        )  # fmt: skip

    def _check_room(self, recipients: int) -> None:
        """Raises NotAccepted, as SMTP refuses MAIL or RCPT."""
        if self._queue.failure is not None:
            raise NotAccepted(UNWRITABLE)
        if self._disk_space is not None and not self._disk_space.is_sufficient():
            raise NotAccepted(NO_SPACE)
        if recipients > self._max_recipients:
            raise NotAccepted(f"452 4.5.3 Too many recipients, at most {self._max_recipients}")

    @property
    def refusal(self) -> str:
        """The reply, as soon as the remaining data should not be sent; empty before."""
        assert self._receiver is not None
        return self._receiver.refusal if self._receiver.over_hard_limit else ""

    async def write(self, data: bytes) -> None:
        """Take the next bytes: header, empty line, body; lines end in CRLF or LF."""
        assert self._receiver is not None
        data = self._pending_cr + data
        self._pending_cr = b"\r" if data.endswith(b"\r") else b""
        data = data[: len(data) - len(self._pending_cr)]
        wait_for = self._receiver.feed(data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
        if wait_for is not None:
            await wait_for

    async def finish(self) -> "AcceptedId":
        """The message's id, once it is on disk. Raises NotAccepted."""
        assert self._receiver is not None
        receiver = self._receiver
        if self._pending_cr:
            receiver.feed(self._pending_cr)
        await receiver.finish()
        if receiver.result is None:
            raise NotAccepted(receiver.refusal)
        return AcceptedId(receiver.result.id, receiver.result.all)

    def abort(self) -> None:
        """Discard the message; does nothing after the end."""
        if self._receiver is not None:
            self._receiver.abort()


class EnqueueOptions(TypedDict, total=False):
    """The keyword arguments of ``enqueue``.

    ``key``: a submission key; for a repetition the id is the first message's. ``user``: the submitter.
    ``notify`` (for every recipient), ``ret``, ``envid`` and ``orcpt`` (by address): the parameters of
    RFC 3461 as SMTP writes them. ``zone``: of every recipient, instead of the routing.
    """

    key: str
    user: str
    notify: str
    ret: str
    envid: str
    orcpt: Mapping[str, str]
    zone: str


class AcceptedId(str):
    """The id of an accepted message. ``all``: those of every message that policies made of it."""

    all: tuple[str, ...]

    def __new__(cls, value: str, every: Sequence[str] = ()) -> "AcceptedId":
        """``every``: empty for a repetition that stored nothing."""
        made = super().__new__(cls, value)
        made.all = tuple(every)
        return made


async def enqueue(
    injector: Injector,
    sender: str,
    recipients: Iterable[str],
    message: bytes | AsyncIterable[bytes],
    **options: Unpack[EnqueueOptions],
) -> AcceptedId:
    """Accept a whole message; returns its id once it is on disk. Raises NotAccepted.

    The zone of ``options`` is a matter of the injector's router.
    """
    unknown = set(options) - set(EnqueueOptions.__annotations__)
    if unknown:
        raise TypeError(f"enqueue() got an unexpected keyword argument '{min(unknown)}'")
    notify, orcpt = options.get("notify", ""), options.get("orcpt", {})
    try:
        await injector.begin(
            sender,
            [rcpt(address, notify, orcpt.get(address, "")) for address in recipients],
            key=options.get("key", ""),
            user=options.get("user", ""),
            ret=options.get("ret", ""),
            envid=options.get("envid", ""),
        )
        async for chunk in _chunks(message):
            await injector.write(chunk)
        return await injector.finish()
    finally:
        injector.abort()


def rcpt(address: str, notify: str, orcpt: str) -> Rcpt:
    """A recipient with the parameters of RFC 3461. Raises NotAccepted for one that SMTP would refuse."""
    flags = parse_notify(notify) if notify else UNSET
    if flags is None:
        raise NotAccepted(
            f"501 5.5.4 NOTIFY={notify} is not NEVER, or some of SUCCESS, FAILURE and DELAY"
        )
    if orcpt and not valid_orcpt(orcpt):
        raise NotAccepted(f"501 5.5.4 ORCPT={orcpt} is not such as rfc822;user@example.com")
    return Rcpt(address, flags, orcpt)


async def _chunks(message: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(message, bytes):
        yield message
        return
    async for chunk in message:
        yield chunk
