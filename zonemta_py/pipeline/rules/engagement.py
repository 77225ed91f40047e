"""The days that separate engagement segments. Pure.

An address is in the segment ``active_N`` of the smallest N whose days its last open or click is in. Days are those of UTC:
an address that was active on 1 November is 30 days old on 1 December, at every hour.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from zonemta_py.core.errors import ConfigError

ACTIVE_DAYS = (30, 90, 180)
SUNSET_DAYS = 365
NEW_DAYS = 30
NEW, LAPSED, SUNSET = "new", "lapsed", "sunset"


@dataclass(frozen=True, slots=True)
class EngagementPolicy:
    """``as_of``: the day for which the segments are made; what happened after it does not count.

    ``active_days``: in any order, one segment for each. Raises ConfigError for days that contradict each other.
    """

    as_of: date
    active_days: tuple[int, ...] = ACTIVE_DAYS
    sunset_days: int = SUNSET_DAYS
    new_days: int = NEW_DAYS

    def __post_init__(self) -> None:
        if not self.active_days:
            raise ConfigError("at least one number of active days is needed")
        if self.sunset_days < max(self.active_days):
            raise ConfigError(
                f"sunset after {self.sunset_days} days, but {max(self.active_days)} days are active: "
                "addresses would be active and in the sunset segment"
            )

    @property
    def ends_ms(self) -> int:
        """The end of the day ``as_of``."""
        return self._begins_ms(-1)

    @property
    def active_since_ms(self) -> dict[str, int]:
        """The begin of each segment ``active_N``, the shortest first."""
        return {f"active_{days}": self._begins_ms(days) for days in sorted(set(self.active_days))}

    @property
    def lapsed_since_ms(self) -> int:
        """An address whose last engagement is before it is in the segment ``sunset``."""
        return self._begins_ms(self.sunset_days)

    @property
    def new_since_ms(self) -> int:
        """An address without engagement that joined before it is not ``new``."""
        return self._begins_ms(self.new_days)

    @property
    def names(self) -> tuple[str, ...]:
        """Every segment, from the most to the least active."""
        return (*self.active_since_ms, NEW, LAPSED, SUNSET)

    def _begins_ms(self, days_before: int) -> int:
        """The begin of a day, counted back from ``as_of``."""
        begins = datetime(self.as_of.year, self.as_of.month, self.as_of.day, tzinfo=UTC)
        return int((begins - timedelta(days=days_before)).timestamp()) * 1000
