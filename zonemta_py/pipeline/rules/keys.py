"""Submission keys of a campaign, and which relay each belongs to. Pure.

The key depends on campaign and recipients alone, so that a task that runs twice, or a whole job,
names the same one; the relay answers a repeat with the first message's id (docs/pipeline.md).
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

KEY_BYTES = 16


def submission_key(campaign: str, addresses: Iterable[str]) -> str:
    """The key of one envelope (hex); the order of ``addresses`` does not matter."""
    text = "\0".join([campaign, *sorted(addresses)])
    return blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()


def relays_of(key: str, relays: Sequence[str]) -> list[str]:
    """``relays`` in the order in which ``key`` prefers them (rendezvous hashing); it belongs to the first.

    When a relay is added or taken away, only the keys that it wins or had change their place.
    """
    return sorted(relays, key=lambda relay: _weight(relay, key), reverse=True)


def _weight(relay: str, key: str) -> bytes:
    return blake2b(f"{relay}\0{key}".encode(), digest_size=8).digest()
