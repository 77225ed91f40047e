"""Settings of transports without sessions; ``zones.NAME.transport`` says which of them counts."""

from dataclasses import dataclass
from pathlib import Path

from zonemta_py.config.fields import MINUTE, choice
from zonemta_py.config.units import Seconds


@dataclass(frozen=True, slots=True)
class MaildirDelivery:
    """Where ``transport: maildir`` delivers: a path with {user}, {domain}, {recipient} in it."""

    path: Path | None = None
    create: bool = False


@dataclass(frozen=True, slots=True)
class PipeDelivery:
    """The program of ``transport: pipe``: its own words, or a preset."""

    command: tuple[str, ...] = ()
    preset: str = choice("none", "maildrop", "dovecot")
    timeout: Seconds = Seconds(5 * MINUTE)


@dataclass(frozen=True, slots=True)
class PythonDelivery:
    """The Python function of ``transport: python``."""

    function: str | None = None
    timeout: Seconds = Seconds(5 * MINUTE)


@dataclass(frozen=True, slots=True)
class HttpDelivery:
    """Where ``transport: http`` posts."""

    url: str | None = None
    token_file: Path | None = None
    timeout: Seconds = Seconds(5 * MINUTE)


@dataclass(frozen=True, slots=True)
class BlackholeDelivery:
    """How long ``transport: blackhole`` takes for each recipient."""

    latency: Seconds = Seconds(0)
