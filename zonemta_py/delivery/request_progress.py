"""What has become of each recipient of a request, over one session or several."""

from zonemta_py.core.codec import replace
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.attempts import attempts_of, no_session
from zonemta_py.delivery.endpoints import Endpoint
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult
from zonemta_py.smtp.classify import Phase, is_closed, is_unserved
from zonemta_py.transports.pipelining import DsnOptions, SmtpSession, TransactionResult


class RequestProgress:
    """A request, and its answers so far. ``unserved``: the indexes of the recipients that the next session may serve."""

    def __init__(self, request: DeliveryRequest, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        self.sessions = 0
        self.opened = 0  # of the sessions: those that were new
        self.unserved = list(range(len(request.recipients)))
        self.recipients_max = 0  # of a transaction, once it is known
        self._attempts: list[Attempt | None] = [None] * len(request.recipients)
        self._answered = False  # a recipient has an answer that is about it
        self._uncertain: dict[int, Attempt] = {}  # those that a host may have without having said so

    def part(self, request: DeliveryRequest) -> DeliveryRequest:
        """``request``, a form of this one, for the recipients that are not served."""
        unserved = self.unserved
        if len(unserved) == len(request.recipients):
            return request
        dsn = request.dsn
        if dsn is not None:
            dsn = DsnOptions(dsn.mail, [dsn.rcpts[index] for index in unserved])
        return replace(request, recipients=[request.recipients[i] for i in unserved], dsn=dsn)

    def add(
        self,
        result: TransactionResult,
        endpoint: Endpoint,
        session: SmtpSession,
        *,
        refuses_session: bool = False,
    ) -> bool:
        """Take the answers to ``part``. Returns whether one of them says that the session is closed.

        ``refuses_session``: the answers are about the session, which serves no more mail.
        """
        self.sessions += 1
        self.recipients_max = session.recipients_max or 0
        indexes, self.unserved = self.unserved, []
        closed, unserved = refuses_session, False
        made = attempts_of(result, endpoint, session, self.began_s)
        known: Attempt | None = None
        for index in indexes[len(result.answers) :]:
            self._attempts[index] = None  # beyond the limit of recipients: not tried in this session
        for index, answer, attempt in zip(indexes, result.answers, made, strict=False):
            self._attempts[index] = attempt
            if answer is None:
                continue
            if attempt is not known:  # recipients with the same answer share an attempt
                known, unserved = attempt, refuses_session or is_unserved(*answer)
                closed = closed or is_closed(*answer)
            if unserved:
                self.unserved.append(index)
            else:
                self._answered = True
        if result.uncertain or self._uncertain:
            self._name_uncertain(indexes)
        return closed

    def _name_uncertain(self, indexes: list[int]) -> None:
        """What one host may have stays uncertain, whatever another host says of it."""
        for index in indexes:
            before, now = self._uncertain.get(index), self._attempts[index]
            if before is not None:
                now = before if now is None else replace(now, uncertain=True)
                self._attempts[index] = now
            if now is not None and now.uncertain:
                self._uncertain[index] = now

    def without_session(self, *, was_stale: bool) -> DeliveryResult:
        """The end of the request when no further session is permitted now.

        ``was_stale``: the peer had closed the idle session; without any answer there was no attempt, and the mail waits.
        """
        if was_stale and not self._answered and not self._uncertain:
            return DeliveryResult([], not_permitted=True)
        return self.result()

    def result(self, failure: DestinationFailed | None = None) -> DeliveryResult:
        """The end of the request; ``failure``: no session could be opened after an idle one was closed."""
        if failure is not None and not self._answered and not self._uncertain:
            return no_session(self.request, failure, self.began_s, tried=True)
        last = self._attempts[-1]
        if self._answered or last is None or last.code not in (0, 421):
            return DeliveryResult(
                self._attempts, recipients_max=self.recipients_max, sessions=self.opened
            )
        refused = last.code == 421 and last.phase != Phase.DOT
        return DeliveryResult(self._attempts, last, refuses_sessions=refused, sessions=self.opened)
