"""One message on its way in: checked, cut, stamped, routed, accepted. Memory stays flat.

After the first thing wrong with it, the rest of a message is read and thrown away, and the reply
to its final dot says what it was: answering earlier would make the rest look like commands.
"""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from zonemta_py.core import clock, faults
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import LocalError, NotAccepted, QueueUnavailable
from zonemta_py.events.schema import Repeated
from zonemta_py.intake.idempotency import Claim
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.rewriting import Parts, rewritten
from zonemta_py.intake.stamping import first_value, stamped
from zonemta_py.policies import EnvelopePolicy
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.format.records import IdempotencyRecord, Origin
from zonemta_py.routing import Router
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.dkim import BodyHash, author_domain, signing_domain
from zonemta_py.smtp.headers import Field, HeaderSplitter, HeaderTooLarge, scan
from zonemta_py.smtp.transparency import LineCheck

LINE_MAX = 65_536  # octets: RFC 5321's 998 is what we may send, not what the world sends us
GIVE_UP_FACTOR = 2  # a sender that goes on past so many times the limit is cut off

UNDER_WAY = "450 4.3.0 This submission is under way, try again later"
UNWRITABLE = "451 4.3.0 The queue cannot be written, try again later"


class Draft(Struct, frozen=True):
    """What the session knows about a message before its data.

    ``recipients``: each address once. ``ret`` and ``envid`` as in RFC 3461.
    """

    sender: str
    recipients: Sequence[Rcpt]
    smtputf8: bool
    origin: Origin
    trusted_routing: bool
    hostname: str
    max_size: int
    max_hops: int
    ret: str = ""
    envid: str = ""
    key_headers: tuple[tuple[str, ...], ...] = ()
    dkim_domains: Collection[str] = ()
    policies: Sequence[EnvelopePolicy] = ()


class MessageReceiver(CommitFuture):
    """Takes the decoded octets of one message; kept when there is a ``reply`` or a ``refusal``.

    ``claim`` is its submission key, if the client named one at MAIL or does so in the header.
    """

    def __init__(self, queue: QueueClient, router: Router, draft: Draft, claim: Claim) -> None:
        super().__init__()
        self._queue = queue
        self._router = router
        self._draft = draft
        self._claim = claim
        self._fresh = claim.fresh(draft.recipients)
        self._writer = queue.open_message()
        self._splitter = HeaderSplitter()
        self._check = LineCheck(LINE_MAX)
        self._hash: BodyHash | None = None
        self._size = 0
        self._parts: Parts | None = None  # under policies, once the header is known
        self._unwritten = 0
        self._failure: QueueUnavailable | None = None
        self._ended = False
        self.refusal = ""
        self.reply = ""

    @property
    def hopeless(self) -> bool:
        """Whether the sender has gone so far past the limit that reading on is of no use."""
        return self._size > GIVE_UP_FACTOR * self._draft.max_size

    def feed(self, data: bytes) -> CommitFuture | None:
        """Take the next octets of the message; the promise, if any, is to be kept before more come."""
        self._size += len(data)
        if self.refusal:
            return None
        wait_for = None
        if self._size > self._draft.max_size:
            self.refusal = f"552 5.3.4 Message size exceeds the limit of {self._draft.max_size} bytes"
        elif self._fresh:
            self._check.feed(data)
            self._judge_lines()
            if not self.refusal:
                wait_for = self._keep(self._splitter.feed, data)
        if self.refusal:
            self.abort()
        return wait_for

    def _keep(self, split: Callable[..., bytes], *data: bytes) -> CommitFuture | None:
        """Write what ``split`` finds to be body; whatever goes wrong becomes the refusal."""
        try:
            began = self._splitter.done
            body = split(*data)
            if not began and self._splitter.done and self._fresh:
                self._headed()
            if self._hash is not None:
                self._hash.feed(body)
            return (self._parts or self._writer).write(body) if body else None
        except NotAccepted as exc:
            self.refusal = str(exc)
        except HeaderTooLarge as exc:
            self.refusal = f"552 5.3.4 Refused: {exc}"
        except QueueUnavailable:
            self.refusal = UNWRITABLE
        except LocalError as exc:
            self.refusal = f"552 5.3.4 {exc}"
        return None

    def _headed(self) -> None:
        """The header is known: what it decides about the body. Raises NotAccepted."""
        draft = self._draft
        if draft.dkim_domains:
            self._hash = self._body_hash()
        if draft.policies:
            header = self._splitter.header
            envelopes = rewritten(draft.policies, draft.sender, draft.recipients, header, draft.origin)
            self._parts = Parts(self._queue, envelopes, self._writer)

    def _body_hash(self) -> BodyHash | None:
        """The hash to compute as the body streams in, if somebody will sign for the author."""
        author = author_domain(self._splitter.header, self._splitter.fields)
        return BodyHash() if signing_domain(author, self._draft.dkim_domains) else None

    def _judge_lines(self) -> None:
        check = self._check
        if check.bare:
            self.refusal = "554 5.6.0 Bare CR or LF is not allowed in a message"
        elif check.nul:
            self.refusal = "554 5.6.0 NUL is not allowed in a message"
        elif check.long:
            self.refusal = f"554 5.6.0 A line is longer than {LINE_MAX} octets"

    def finish(self) -> None:
        """The data has ended."""
        if not self.refusal:
            self._check.finish()
            self._judge_lines()
        if not self.refusal:
            self._keep(self._splitter.finish)
        key = "" if self.refusal or self._claim.taken else self._key_in_header()
        if key:
            lookup = self._claim.acquire(key)
            lookup.add_done_callback(lambda failure: self._claimed(failure, busy=lookup.busy))
        else:
            self._conclude()

    def _key_in_header(self) -> str:
        """The submission key: the first group of header fields that are all there; empty without one."""
        header, fields = self._splitter.header, self._splitter.fields
        present = {field.name for field in fields}
        for names in self._draft.key_headers:
            lower = _lower(names)
            if not present.issuperset(lower):
                continue
            values = [first_value(header, fields, name) for name in lower]
            if all(values):
                return "\0".join([*names, *values])
        return ""

    def _claimed(self, failure: QueueUnavailable | None, *, busy: bool) -> None:
        if self._ended:
            return  # the client has left meanwhile
        if failure is not None:
            self.refusal = UNWRITABLE
        elif busy:
            self.refusal = UNDER_WAY
        else:
            self._fresh = self._claim.fresh(self._draft.recipients)
        self._conclude()

    def _conclude(self) -> None:
        """Hand the message to the queue unless it is refused, or repeats another."""
        if not self.refusal and not self._fresh:
            self._repeated()
            self.set_result()
            return
        try:
            new = [] if self.refusal else self._compose()
        except NotAccepted as exc:
            self.refusal, new = str(exc), []
        if not new:
            if self.refusal:
                self.abort()
            else:
                self._repeated()  # policies lead the new recipients where the message already went
            self.set_result()
            return
        self._unwritten = len(new)
        promises = [self._queue.accept(writer, message) for writer, message in new]
        self._ended = True  # from here on the queue answers for the message, whatever the client does
        self._claim.handed_over()
        taken = {writer.id for writer, _ in new}
        for writer in self._writers():
            if writer.id not in taken:
                self._queue.abort(writer)
        for promise in promises:
            promise.add_done_callback(self._stored)

    def _stored(self, failure: QueueUnavailable | None) -> None:
        """A message is on disk, or not; with the last of them the client is answered."""
        self._unwritten -= 1
        self._failure = self._failure or failure
        if self._unwritten:
            return
        first, own = self._claim.first, self._writer.id
        if self._failure is not None:
            self.refusal = UNWRITABLE
        elif first:
            self.reply = (
                f"250 2.0.0 Ok: queued as {first} duplicate, {len(self._fresh)} new recipients as {own}"
            )
        else:
            self.reply = f"250 2.0.0 Ok: queued as {own}"
        faults.reach("reply.unsent")
        self.set_result()

    def _repeated(self) -> None:
        """Everybody was accepted under this key before: the answer is the first message's."""
        draft, first = self._draft, self._claim.first
        self.abort()
        self._queue.record(
            Repeated(
                time_ms=clock.now_ms(), message=first, recipients=len(draft.recipients),
                listener=draft.origin.listener, client_ip=draft.origin.client_ip, user=draft.origin.user,
            )
        )  # fmt: skip
        self.reply = f"250 2.0.0 Ok: queued as {first} duplicate"

    def abort(self) -> None:
        """Leave nothing behind; harmless after the end."""
        self._claim.give_up()
        if not self._ended:
            self._ended = True
            for writer in self._writers():
                self._queue.abort(writer)

    def _writers(self) -> list[MessageWriter]:
        return [part.writer for part in self._parts.parts] if self._parts else [self._writer]

    def _compose(self) -> list[tuple[MessageWriter, NewMessage]]:
        """The messages as they are stored; none when all their recipients have them. Raises NotAccepted."""
        fresh, splitter, first = self._fresh, self._splitter, self._writer.id
        key = self._claim.covering(first, fresh)
        if self._parts is None:
            new = self._stamped(first, splitter.header, splitter.fields, self._draft.sender, fresh, key)
            return [(self._writer, new)]
        repeats = bool(self._claim.first)
        wanted = [
            (part, self._parts.recipients(part, fresh, repeats=repeats)) for part in self._parts.parts
        ]
        wanted = [(part, recipients) for part, recipients in wanted if recipients]
        found: list[tuple[MessageWriter, NewMessage]] = []
        for (envelope, writer), recipients in wanted:
            fields, _ = scan(envelope.header)
            # The key is on disk no sooner than all it covers: batches are written in order.
            its_key = key if len(found) == len(wanted) - 1 else None
            new = self._stamped(writer.id, envelope.header, fields, envelope.sender, recipients, its_key)
            found.append((writer, new))
        return found

    def _stamped(
        self,
        message: str,
        header: bytes,
        fields: Sequence[Field],
        sender: str,
        recipients: Sequence[Rcpt],
        key: tuple[str, IdempotencyRecord] | None,
    ) -> NewMessage:
        draft = self._draft
        return stamped(
            message, header, fields, sender=sender, recipients=recipients, origin=draft.origin,
            hostname=draft.hostname, router=self._router, trusted_routing=draft.trusted_routing,
            max_hops=draft.max_hops, eight_bit=self._check.eight_bit, smtputf8=draft.smtputf8,
            ret=draft.ret, envid=draft.envid, key=key,
            body_hash=self._hash.digest() if self._hash is not None else b"",
        )  # fmt: skip


@lru_cache(maxsize=256)
def _lower(names: tuple[str, ...]) -> tuple[bytes, ...]:
    """Names of header fields as ``Field`` has them."""
    return tuple(name.lower().encode() for name in names)
