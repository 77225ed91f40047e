"""From which addresses mail leaves, and what limits it beside the zones. Values are frozen."""

from dataclasses import dataclass
from pathlib import Path

from zonemta_py.config.endpoints import Address
from zonemta_py.config.values import MINUTE, Percent, Rate, Seconds, number


@dataclass(frozen=True, slots=True)
class AddressLimits:
    """What one source address may do, whatever the destination; see ``ProviderLimits``."""

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
    """How far the relay goes back by itself where a provider refuses or defers the mail of an address."""

    enabled: bool = True
    interval: Seconds = Seconds(5 * MINUTE)
    attempts: int = number(50, 1, 1_000_000)
    deferrals: Percent = number(10, 1, 100)
    decrease: Percent = number(50, 1, 99)
    step: Percent = number(10, 1, 100)
    sessions: int = number(20, 1, 100_000)


@dataclass(frozen=True, slots=True)
class ShapingSettings:
    """What replies change: by the rules of the files, and by the controller."""

    file: Path | None = None
    shipped: bool = True
    controller: ControllerSettings = ControllerSettings()


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """The schedules of addresses that are new."""

    file: Path | None = None
