"""The intake limits of one session's client, asked at MAIL.

What a message uses is charged at its end (``message.py``); here a client whose limit is reached is refused before it sends one.
"""

from zonemta_py.config.limits import LimitRules
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.intake.queue_client import LimitsClient
from zonemta_py.queue.intake_limits import Charge, LimitedClient, Use


class MailLimits:
    """``recipients_max``: how many recipients a message may have by the limits of its client; None: any number."""

    def __init__(self) -> None:
        self._counted: LimitedClient | None = None  # whose session it is, once it counts
        self.recipients_max: int | None = None

    def ask(self, limits: LimitsClient, rules: LimitRules, client: LimitedClient) -> Charge | None:
        """Whether ``client`` may send a message now; None: it has no limits. Its first one counts the session."""
        found = [each for _, each in rules.of(*client)]
        numbers = [each.recipients_max for each in found if each.recipients_max is not None]
        self.recipients_max = min(numbers, default=None)
        if not found:
            return None
        if client == self._counted or not any(each.sessions for each in found):
            return Charge().answer(limits.closed(client), 0)
        return self._count(limits, client)

    def _count(self, limits: LimitsClient, client: LimitedClient) -> Charge:
        """Count the session, then ask whether a message may follow."""
        charge, answer = limits.charge(client, Use(sessions=1)), Charge()

        def charged(failure: QueueUnavailable | None) -> None:
            if failure is not None:
                answer.set_exception(failure)
                return
            if not charge.refusal:
                self._counted = client
            answer.answer(charge.refusal or limits.closed(client), 0)

        charge.add_done_callback(charged)
        return answer
