"""Which recipients of a list a plan takes: a sample, or one variant of a test. Pure.

A recipient's place, a number from 0 to 1, is a hash of its address and of the campaign: it is the same in every plan of the campaign,
whatever else is in the list. The places for samples and for variants are independent of each other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PER_CENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%?")
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Selection:
    """``sample``: a share of the recipients, at most 1. ``variant``: one of ``variants``, or None: all of them.

    ``variants``: names with their shares; what is left of 1 is in none.
    """

    campaign: str
    sample: float = 1.0
    variants: Sequence[tuple[str, float]] = ()
    variant: str | None = None
    caps: Mapping[str, int] | None = None  # recipients by provider; the others are postponed

    @property
    def sample_salt(self) -> str:
        """What the place in the sample depends on besides the address."""
        return f"sample\0{self.campaign}"

    @property
    def variant_salt(self) -> str:
        """What the variant depends on besides the address."""
        return f"variant\0{self.campaign}"

    def variant_ends(self) -> list[tuple[str, float]]:
        """Each variant with the place at which it ends; it begins at the end of the one before."""
        ends = accumulate(share for _, share in self.variants)
        return [(name, min(1.0, end)) for (name, _), end in zip(self.variants, ends, strict=True)]


def parse_share(text: str) -> float:
    """A share from ``5%`` or ``2.5``, in per cent. Raises ValueError with what is expected."""
    match = _PER_CENT.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= 100:
        raise ValueError("a share in per cent, such as 5%")
    return float(match[1]) / 100


def parse_variants(text: str) -> tuple[tuple[str, float], ...]:
    """Variants from ``a=45,b=45,holdout=10``, in per cent. Raises ValueError with what is expected."""
    found = []
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        if not _NAME.fullmatch(name):
            raise ValueError("names with shares in per cent, such as a=45,b=45,holdout=10")
        found.append((name, parse_share(share)))
    if len({name for name, _ in found}) < len(found):
        raise ValueError("variants with different names")
    if sum(share for _, share in found) > 1 + ROUNDING:
        raise ValueError("variants with at most 100 % together")
    return tuple(found)
