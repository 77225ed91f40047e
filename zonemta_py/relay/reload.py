"""What a reload of the configuration reads, what it may change, and what it has changed.

Reading and checking a large configuration takes a second, so ``prepare`` runs in a thread. It uses nothing that
changes while the relay runs; what follows, from ``check_reloadable`` on, happens on the loop without an await.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from zonemta_py.admin.tokens import Tokens
from zonemta_py.config.hooks import Hooks
from zonemta_py.config.load import load_config
from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import Zone
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.interpreter import without_collection
from zonemta_py.delivery.dkim import DkimKeys
from zonemta_py.delivery.egress import read_egress
from zonemta_py.delivery.shaper import EgressFiles
from zonemta_py.intake.context import SessionSettings
from zonemta_py.queue.format.records import TENANT_LANE
from zonemta_py.queue.queue import Queue
from zonemta_py.relay.preflight import verify, warnings
from zonemta_py.routing import DEQUEUE_TRANSPORT, Router, make_router
from zonemta_py.smtp.classification import ReplyClassifier


@dataclass(frozen=True, slots=True)
class PreparedConfig:
    """A configuration that can be used, and all that was read from its files."""

    config: Config
    hostname: str
    router: Router
    sessions: Sequence[SessionSettings]
    tokens: Tokens | None  # None without an admin server
    dkim_keys: DkimKeys
    egress_files: EgressFiles
    classifier: ReplyClassifier
    warnings: Sequence[str]
    changed: Sequence[str]  # keys, against the present configuration


@dataclass(frozen=True, slots=True)
class PresentConfig:
    """The configuration in use, and its files of egress; only a reload changes it."""

    config: Config
    egress_files: EgressFiles
    hooks: Hooks


def prepare(
    config: Config | Path,
    present: PresentConfig,
    sessions_of: Callable[[Config, str, Router], Sequence[SessionSettings]],
    tokens_of: Callable[[Config], Tokens] | None,
) -> PreparedConfig:
    """Read ``config`` (a file, if it is a path) and what it names. Raises ConfigError, and changes nothing."""
    try:
        with without_collection():
            return _prepared(config, present, sessions_of, tokens_of)
    except ConfigError:
        raise
    except Exception as exc:  # of a function that the configuration names
        raise ConfigError(f"the configuration cannot be used: {exc!r}") from exc


def _prepared(
    config: Config | Path,
    present: PresentConfig,
    sessions_of: Callable[[Config, str, Router], Sequence[SessionSettings]],
    tokens_of: Callable[[Config], Tokens] | None,
) -> PreparedConfig:
    hooks = present.hooks
    config = hooks.apply(load_config(config) if isinstance(config, Path) else config)
    dkim_keys = verify(config, hooks)
    hostname, router = config.hostname or socket.getfqdn(), make_router(config)
    egress_files = read_egress(config)
    files = changed_files(present.egress_files, egress_files)
    return PreparedConfig(
        config=config,
        hostname=hostname,
        router=router,
        sessions=sessions_of(config, hostname, router),
        tokens=tokens_of(config) if tokens_of is not None else None,
        dkim_keys=dkim_keys,
        egress_files=egress_files,
        classifier=make_classifier(config.classify.file),
        warnings=list(warnings(config, hostname)),
        changed=list(dict.fromkeys([*changed_keys(present.config, config), *files])),
    )


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
    """What must not change because waiting mail is stored under it: which mail goes to smarthosts, and to which."""
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


def changed_files(old: EgressFiles, new: EgressFiles) -> Iterator[str]:
    """The keys of files in which something else is written now."""
    parts = {
        "providers.file": (old.table.providers, new.table.providers),
        "warmup.file": (tuple(old.schedules), tuple(new.schedules)),
        "shaping.file": (old.rules.rules, new.rules.rules),
    }
    yield from (key for key, (was, will) in parts.items() if was != will)


def use_in_queue(queue: Queue, config: Config) -> None:
    """Let ``queue`` have the zones of ``config``, and the weights of tenants by the name of their mail in ready windows."""
    queue.set_zones(frozenset(config.zones))
    weights = {
        TENANT_LANE + name: each.weight for name, each in config.tenants.items() if each.weight > 1
    }
    queue.windows.set_weights(weights)
