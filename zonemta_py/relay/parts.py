"""The parts of a relay, in one list: it is started in this order, reconfigured along it, and stopped in reverse.

A part is begun by ``start``; ``drain`` and ``close`` follow if it was, even if ``start`` failed. A reload has four steps, and
each goes through the whole list:

1. ``prepare`` reads what the part needs of the new configuration, in a thread: a large one takes a second. It changes
   nothing, and uses nothing that changes while the relay runs. Raises ConfigError.
2. ``check`` refuses what needs a restart, on the loop. Raises ConfigError.
3. ``Prepared.apply`` uses what was read, on the loop: of all parts without an await, and it cannot fail.
4. ``follow`` is awaited: what follows from the configuration in other relays of this process.

An error in the first two leaves the present configuration in use. An example:

    Part("the listeners", self._listen, self._drain, self._close, prepare=self.prepare)
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from zonemta_py.config.hooks import Hooks
from zonemta_py.config.load import load_config
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import Zone
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.runtime import without_collection
from zonemta_py.delivery.dkim import DkimKeys
from zonemta_py.relay.preflight import verify
from zonemta_py.routing import DEQUEUE_TRANSPORT, Router, make_router

log = logging.getLogger(__name__)


# ---- A configuration that takes the place of another.


@dataclass(frozen=True, slots=True)
class NewConfig:
    """A configuration that was verified, and what all parts derive from it."""

    config: Config
    hostname: str
    router: Router
    dkim_keys: DkimKeys


def read_config(source: Config | Path, hooks: Hooks) -> NewConfig:
    """The configuration in ``source`` (a file, if it is a path), with ``hooks``. Raises ConfigError."""
    config = hooks.apply(load_config(source) if isinstance(source, Path) else source)
    dkim_keys = verify(config, hooks)
    return NewConfig(config, config.hostname or socket.getfqdn(), make_router(config), dkim_keys)


def check_reloadable(old: Config, new: Config, zones_with_mail: Set[str]) -> None:
    """Raises ConfigError when the change from ``old`` to ``new`` needs a restart."""
    gone = (set(old.zones) - set(new.zones)) & zones_with_mail
    if gone:
        raise ConfigError(
            f"zones: the new configuration has no zone '{min(gone)}', for which recipients are waiting; "
            "add it, or set zone_removed: default and restart"
        )
    before, after = ([listener.address for listener in config.listeners] for config in (old, new))
    fixed: list[tuple[str, object, object]] = [
        ("listeners", before, after),
        ("queue", old.queue, new.queue),
        ("processes", old.processes, new.processes),
        ("events", old.events, new.events),
        ("admin", old.admin, new.admin),
        ("log", old.log, new.log),
    ]
    was_mode, will_mode = ([one.tls.mode for one in config.listeners] for config in (old, new))
    fixed.append(("listeners.tls.mode", was_mode, will_mode))
    for name in set(old.zones) & set(new.zones):
        was, will = old.zones[name], new.zones[name]
        fixed += _names_of_destinations(f"zones.{name}", was, will)
        if DEQUEUE_TRANSPORT in (was.transport, will.transport):
            fixed.append((f"zones.{name}.transport", was.transport, will.transport))
    for key, was_set, is_set in fixed:
        if was_set != is_set:
            names = ", ".join(changed_keys(was_set, is_set, key))
            raise ConfigError(
                f"{names}: a change needs a restart; no other change of the file is used before"
            )


def _names_of_destinations(key: str, was: Zone, will: Zone) -> Iterator[tuple[str, object, object]]:
    """Settings that must not change because waiting mail is stored under them: the mail that goes to smarthosts, and to which."""
    yield f"{key}.smarthost (from none, or to none)", bool(was.smarthost), bool(will.smarthost)
    if any(part.smarthost for zone in (was, will) for _, part in zone.parts()):
        before, after = (
            [(item.domains, bool(item.smarthost)) for item in zone.destinations] for zone in (was, will)
        )
        yield f"{key}.destinations (their domains, beside a smarthost)", before, after


def changed_keys(old: object, new: object, key: str = "") -> Iterator[str]:
    """The keys whose values differ, as the configuration writes them: ``zones.bulk.connections``."""
    if old == new:
        return
    if is_dataclass(old) and type(old) is type(new):
        for each in fields(old):
            if not each.metadata.get("hidden"):
                below = f"{key}.{each.name}".lstrip(".")
                yield from changed_keys(getattr(old, each.name), getattr(new, each.name), below)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            yield from changed_keys(old.get(name), new.get(name), f"{key}.{name}")
    elif type(old) is tuple and type(new) is tuple and len(old) == len(new):
        for number, (was, will) in enumerate(zip(old, new, strict=True)):
            yield from changed_keys(was, will, f"{key}[{number}]")
    else:
        yield key


# ---- The list.


async def _nothing() -> None:
    pass


async def _nothing_to_drain(grace_s: float) -> None:
    pass


def _nothing_to_apply() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A new configuration as a part has read it: ``apply`` uses it. ``changed``: the keys of files with other contents."""

    apply: Callable[[], None] = _nothing_to_apply
    changed: Sequence[str] = ()


def _nothing_to_prepare(new: NewConfig) -> Prepared:
    return Prepared()


def _nothing_to_check(new: NewConfig) -> None:
    pass


async def _nothing_follows(new: NewConfig) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Part:
    """One part. ``drain`` ends its work within ``grace_s``; ``close`` frees what it holds. The others: see above."""

    name: str
    start: Callable[[], Awaitable[object]] = _nothing
    drain: Callable[[float], Awaitable[object]] = _nothing_to_drain
    close: Callable[[], Awaitable[object]] = _nothing
    prepare: Callable[[NewConfig], Prepared] = _nothing_to_prepare
    check: Callable[[NewConfig], None] = _nothing_to_check
    follow: Callable[[NewConfig], Awaitable[object]] = _nothing_follows


class Parts:
    """Starts, reconfigures and stops ``parts``."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._begun: list[Part] = []

    async def start(self) -> None:
        """Start all in order. After an error ``stop`` stops those that were begun."""
        for part in self._parts:
            self._begun.append(part)
            await part.start()

    def prepare(self, source: Config | Path, hooks: Hooks) -> tuple[NewConfig, Sequence[Prepared]]:
        """Read a configuration, and what each part needs of it. Raises ConfigError, and changes nothing."""
        try:
            with without_collection():
                new = read_config(source, hooks)
                return new, [part.prepare(new) for part in self._parts]
        except ConfigError:
            raise
        except Exception as exc:  # of a function that the configuration names
            raise ConfigError(f"the configuration cannot be used: {exc!r}") from exc

    def apply(self, new: NewConfig, prepared: Sequence[Prepared]) -> None:
        """Use what ``prepare`` returned. Raises ConfigError, and changes nothing, when the change needs a restart."""
        for part in self._parts:
            part.check(new)
        for each in prepared:
            each.apply()

    async def follow(self, new: NewConfig) -> None:
        """After ``apply``: let others have the configuration."""
        for part in self._parts:
            await part.follow(new)

    async def stop(self, grace_s: float) -> None:
        """Drain all at once, then close each, the last started first. Errors are logged."""
        begun, self._begun = self._begun[::-1], []
        results = await asyncio.gather(*(part.drain(grace_s) for part in begun), return_exceptions=True)
        for part, result in zip(begun, results, strict=True):
            if isinstance(result, BaseException):
                log.error("stopping %s failed: %r", part.name, result)
        for part in begun:
            try:
                await part.close()
            except Exception:
                log.exception("%s could not be closed", part.name)
