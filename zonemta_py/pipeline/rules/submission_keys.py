"""Submission keys of a plan, and the relay that each key belongs to. Pure.

A key depends on its scope and the recipients alone. A task or a job that runs twice therefore uses the same key,
and the relay answers a repeat with the id of the first message (docs/pipeline.md). The scope is the id of the plan, or
the name of the campaign (decision 90).
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b, sha256

KEY_DIGITS = 32


def submission_key(scope: str, addresses: Iterable[str]) -> str:
    """The key of one envelope: KEY_DIGITS hex digits. The order of ``addresses`` does not matter."""
    text = "\0".join([scope, *sorted(addresses)])
    return sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def relays_of(key: str, relays: Sequence[str]) -> list[str]:
    """``relays`` in the order of preference of ``key`` (rendezvous hashing); ``key`` belongs to the first.

    When a relay is added or removed, only the keys that it gains or loses change their relay.
    """
    return sorted(relays, key=lambda relay: _weight(relay, key), reverse=True)


def _weight(relay: str, key: str) -> bytes:
    return blake2b(f"{relay}\0{key}".encode(), digest_size=8).digest()
