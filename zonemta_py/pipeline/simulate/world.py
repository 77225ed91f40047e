"""The world of a simulated relay: the time, limits and peers that its zones share. Peers reply as they were recorded. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from zonemta_py.core.model import PathKey
from zonemta_py.pipeline.simulate.egress import RecordedDomain, SimulatedEgress
from zonemta_py.pipeline.simulate.mail import VirtualClock
from zonemta_py.pipeline.simulate.prediction import ATTEMPTS_MAX, PeerModel, SimulatedMessage, share_at
from zonemta_py.pipeline.simulate.recorded import BOUNCED, DEFERRED, RateMeter, RecordedReply, ReplyModel
from zonemta_py.schedule.scheduler import TokenBucket

UNKNOWN_REPLIES = ReplyModel(())


@dataclass(frozen=True, slots=True)
class PeerModels:
    """How others answer: ``default`` is for a destination that is not in ``domains``; ``replies`` are by provider."""

    default: PeerModel
    domains: Mapping[str, PeerModel]
    replies: Mapping[str, ReplyModel]

    def of(self, message: SimulatedMessage) -> PeerModel:
        """How the destination of ``message`` answers."""
        return self.domains.get(message.destination, self.default)


@dataclass(frozen=True, slots=True)
class SentTransaction:
    """A transaction that begins, for an observer."""

    time_ms: int
    path: PathKey
    recipients: int
    opened: bool


@dataclass(frozen=True, slots=True)
class SimulatedWorld:
    """Time, limits and peers, shared by the zones. ``relay_bucket``: the limit of the relay itself, if there is one."""

    clock: VirtualClock
    egress: SimulatedEgress
    peers: PeerModels
    random: Random
    meters: dict[PathKey, RateMeter]
    domains: Mapping[str, RecordedDomain]
    relay_bucket: TokenBucket | None = None
    on_sent: Callable[[SentTransaction], None] | None = None

    def time_s(self, message: SimulatedMessage) -> float:
        """How long a transaction of ``message`` takes."""
        times_s = self.peers.of(message).times_s
        return times_s[self.random.randrange(len(times_s))]

    def _model(self, domain: str, provider: str) -> ReplyModel | None:
        """The replies that were recorded for ``domain``, whatever its provider is called now."""
        recorded, replies = self.domains.get(domain), self.peers.replies
        if recorded is not None and recorded.provider in replies:
            return replies[recorded.provider]
        return replies.get(provider)

    def replies_of(
        self, message: SimulatedMessage, tried: tuple[int, int], path: PathKey
    ) -> Counter[RecordedReply | None]:
        """The replies of the peer to ``tried`` (recipients, attempt from 1), with their numbers; None: it accepts.

        A reply that speaks of the sender is that to all of them: they are of one message (decision 124).
        """
        (recipients, attempt), peer = tried, self.peers.of(message)
        nth, model = min(attempt, ATTEMPTS_MAX), self._model(message.destination, path[0])
        deferred, bounced = share_at(peer.deferred, nth), share_at(peer.bounced, nth)
        per_minute = 0.0
        if model is not None:
            meter = self.meters.setdefault(path, RateMeter())
            per_minute = meter.add(recipients, self.clock.now_s)
            refused = model.of_sender(per_minute, self.random)
            if refused is not None:
                return Counter({refused: recipients})
        found: Counter[RecordedReply | None] = Counter()
        for _ in range(recipients):
            reply, drawn = None, self.random.random()
            if drawn < deferred + bounced:
                event = DEFERRED if drawn < deferred else BOUNCED
                reply = (model or UNKNOWN_REPLIES).other(event, self.random)
            found[reply] += 1
        return found
