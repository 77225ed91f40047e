"""Which limit of a zone keeps the mail of a destination waiting. Pure; times are monotonic seconds."""

from enum import StrEnum
from typing import NamedTuple

from zonemta_py.core.codec import Struct


class Limit(StrEnum):
    """What may keep the mail of a destination waiting."""

    SUSPENSION = "suspension"  # it did not answer
    PROBE = "probe"  # it is suspended, and one worker tries it now
    RATE = "rate"  # of the zone
    CONNECTIONS = "connections"  # of the zone
    CONNECTIONS_PER_DOMAIN = "connections_per_domain"
    LEARNED_LIMIT = "learned_limit"  # the peer takes no more sessions
    SLOW_START = "slow_start"  # its first sessions are being opened
    UNANSWERED_BUDGET = "unanswered_budget"  # connections for destinations that have not answered lately
    PROVIDER_LOOK_UP = "provider_look_up"  # whose hosts receive its mail is being looked up
    PROVIDER_SESSIONS = "provider_sessions"
    PROVIDER_RATE = "provider_rate"
    PROVIDER_CONNECT_RATE = "provider_connect_rate"
    ADDRESS_SESSIONS = "address_sessions"  # of a source address, over all destinations
    ADDRESS_RATE = "address_rate"
    ADDRESS_CONNECT_RATE = "address_connect_rate"
    CONTROLLER = "controller"  # the provider has refused or deferred too much
    PAUSE = "pause"  # of a source address at a provider, by a rule or by the controller
    WARMUP = "warmup"  # the number of the day is reached
    NO_SOURCE = "no_source"  # every address of the pool is disabled or suspended
    OPERATOR = "operator_suspension"  # of the zone, provider, domain or address


class Binding(NamedTuple):
    """The limit that binds: from when, when it is looked at again (0: at an event), and why, as text."""

    limit: Limit
    since_s: float
    until_s: float
    reason: str


class Constraint(Struct, frozen=True):
    """Why a recipient is still waiting: ``name``, from when and until when (unix ms; 0: unknown), and as text.

    ``key`` is that of the configuration which sets it, or empty.
    """

    name: str
    reason: str
    since_ms: int = 0
    until_ms: int = 0
    key: str = ""


def constraint_of(binding: Binding, zone: str, now_s: float, now_ms: int) -> Constraint:
    """The binding limit of ``zone`` for an operator."""
    since_ms = now_ms - int((now_s - binding.since_s) * 1000)
    until_ms = now_ms + int((binding.until_s - now_s) * 1000) if binding.until_s else 0
    key = _KEYS.get(binding.limit, "")
    whole = f"zones.{zone}.{key}" if key else _OTHER_KEYS.get(binding.limit, "")
    return Constraint(binding.limit.value, binding.reason, since_ms, until_ms, whole)


_KEYS = {
    Limit.SUSPENSION: "retry",
    Limit.PROBE: "retry",
    Limit.RATE: "rate",
    Limit.CONNECTIONS: "connections",
    Limit.CONNECTIONS_PER_DOMAIN: "connections_per_domain",
    Limit.UNANSWERED_BUDGET: "connections",
    Limit.NO_SOURCE: "pool",
}

_OTHER_KEYS = {
    Limit.PROVIDER_SESSIONS: "providers.file",
    Limit.PROVIDER_RATE: "providers.file",
    Limit.PROVIDER_CONNECT_RATE: "providers.file",
    Limit.ADDRESS_SESSIONS: "pools",
    Limit.ADDRESS_RATE: "pools",
    Limit.ADDRESS_CONNECT_RATE: "pools",
    Limit.CONTROLLER: "shaping.controller",
    Limit.PAUSE: "shaping.file",
    Limit.WARMUP: "warmup.file",
}
