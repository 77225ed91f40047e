"""Scanning of messages at intake. Values are frozen."""

from dataclasses import dataclass

from zonemta_py.config.units import Seconds, Size, choice


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """An rspamd that is asked about each message before it is accepted; None: none is."""

    rspamd: str | None = None  # URL
    timeout: Seconds = Seconds(5)
    unavailable: str = choice("accept", "defer")
    suspicious: str = choice("header", "hold")
    max_size: Size = Size(2 << 20)
