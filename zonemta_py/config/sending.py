"""Source addresses of outgoing mail, and their limits in addition to those of the zones. Values are frozen."""

from dataclasses import dataclass
from pathlib import Path

from zonemta_py.config.endpoints import Address
from zonemta_py.config.values import MINUTE, Percent, Rate, Seconds, number


@dataclass(frozen=True, slots=True)
class AddressLimits:
    """Limits of one source address, whatever the destination; the units are those of ``ProviderLimits``."""

    sessions: int | None = number(None, 1, 100_000)
    rate: tuple[Rate, ...] = ()
    connect_rate: tuple[Rate, ...] = ()


NO_ADDRESS_LIMITS = AddressLimits()


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """One source address of outgoing connections. ``disabled``: no connection leaves from it."""

    address: Address | None = None
    ehlo: str | None = None
    weight: int = number(1, 0, 1_000_000)
    disabled: bool = False
    limits: AddressLimits = NO_ADDRESS_LIMITS


@dataclass(frozen=True, slots=True)
class ProvidersSettings:
    """The table of providers: the shipped one, if ``shipped``, and those of ``file``."""

    file: Path | None = None
    shipped: bool = True


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The controller, which lowers the limits of an address where a provider refuses or defers its mail."""

    enabled: bool = True
    interval: Seconds = Seconds(5 * MINUTE)
    attempts: int = number(50, 1, 1_000_000)
    deferrals: Percent = number(10, 1, 100)
    decrease: Percent = number(50, 1, 99)
    step: Percent = number(10, 1, 100)
    sessions: int = number(20, 1, 100_000)


@dataclass(frozen=True, slots=True)
class ShapingSettings:
    """The rules and the controller that change limits because of replies."""

    file: Path | None = None
    shipped: bool = True
    controller: ControllerSettings = ControllerSettings()


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """The schedules of addresses that are new."""

    file: Path | None = None
