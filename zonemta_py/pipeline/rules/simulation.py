"""Simulates the delivery of a load through the zones of a relay: discrete events on a virtual clock. No Spark, no network.

Not simulated: the time that a session takes to open (it is part of the recorded time of a transaction), limits of peers
that the relay learns, look-ups, tenants, and the work of the relay itself beyond ``relay_limit_per_s``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random

from zonemta_py.config.units import Rate
from zonemta_py.config.zones import Zone
from zonemta_py.pipeline.rules.prediction import PathLimits, Prediction, SimulatedMessage
from zonemta_py.pipeline.rules.simulated_egress import (
    RecordedDomain,
    SendingSettings,
    SimulatedEgress,
)
from zonemta_py.pipeline.rules.simulated_world import PeerModels, SentTransaction, SimulatedWorld
from zonemta_py.pipeline.rules.simulated_zone import SimulatedZone
from zonemta_py.pipeline.rules.virtual_clock import VirtualClock
from zonemta_py.schedule.token_bucket import TokenBucket


@dataclass(frozen=True, slots=True)
class SimulatedRelay:
    """A configuration to be tried. ``zones``: mail of a zone that is not there goes to ``default``.

    ``relay_limit_per_s``: the maximum of transactions per second that the relay itself can do, or None.
    """

    zones: Mapping[str, Zone]
    sending: SendingSettings = field(default_factory=SendingSettings)
    relay_limit_per_s: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """Messages in the order of their arrival, the first at ``begin_ms`` (unix ms), and what events say of their domains."""

    messages: Iterable[SimulatedMessage]
    peers: PeerModels
    begin_ms: int = 0
    domains: Mapping[str, RecordedDomain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Predicted:
    """The result of each zone that had mail, and what limits and replies did on each path."""

    zones: Mapping[str, Prediction]
    paths: PathLimits


def simulate(
    relay: SimulatedRelay, load: SimulatedLoad, on_sent: Callable[[SentTransaction], None] | None = None
) -> Predicted:
    """Deliver ``load`` through ``relay``. ``on_sent`` is called with each transaction. Raises KeyError for a zone without settings."""
    clock = VirtualClock(load.begin_ms)
    egress = SimulatedEgress(relay.sending, load.domains, clock)
    # The limit of the relay itself is a bucket too, shared by all workers.
    limit_per_s = relay.relay_limit_per_s
    bucket = TokenBucket(Rate(max(1, round(limit_per_s * 60)), 60.0), 0.0) if limit_per_s else None
    world = SimulatedWorld(
        clock, egress, load.peers, Random(relay.seed), {}, load.domains, bucket, on_sent
    )
    zones: dict[str, SimulatedZone] = {}

    def zone_of(name: str) -> SimulatedZone:
        if name not in zones:
            settings = relay.zones[name] if name in relay.zones else relay.zones["default"]
            zones[name] = SimulatedZone(name, settings, world)
        return zones[name]

    def arrive(number: int, message: SimulatedMessage) -> None:
        zone_of(message.zone).arrive(number, message)

    messages, began_s = enumerate(load.messages), 0.0
    number, arriving = next(messages, (0, None))
    if arriving is not None:
        began_s = arriving.arrival_s
    while arriving is not None or clock.next_s is not None:
        due_s = clock.next_s
        if arriving is None or (due_s is not None and due_s < arriving.arrival_s - began_s):
            clock.run_next()
            continue
        now_s = arriving.arrival_s - began_s
        shifted = SimulatedMessage(now_s, arriving.destination, arriving.recipients, arriving.zone)
        clock.run_at(now_s, partial(arrive, number, shifted))
        number, arriving = next(messages, (0, None))
    return Predicted({name: zone.result() for name, zone in zones.items()}, egress.limits)
