"""File descriptors: as many as the system allows, and no configuration that could use up those of the store.

A database that cannot open its next file is lost until it is opened again, so sessions must never get there.
"""

import resource

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import HTTP_CONNECTIONS_MAX, Config
from zonemta_py.core.errors import ConfigError
from zonemta_py.processes.supervisor import cores, process_counts
from zonemta_py.storage.leveldb import TABLES_OPEN_MAX

RESERVE = TABLES_OPEN_MAX + 64  # of the store, its segments, the event log, DNS, pipes and logs


def raise_descriptor_limit() -> None:
    """Raise the soft limit of this process, and of its children, to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_needed(config: Config, hooks: Hooks = NO_HOOKS) -> int:
    """How many descriptors the process with the queue may use at once."""
    receivers, senders = process_counts(config, cores(), hooks)
    needed = RESERVE
    if receivers == 0:
        needed += sum(  # as many connections of proxies have no place yet
            listener.max_sessions * (2 if listener.proxies else 1) for listener in config.listeners
        )
    if senders == 0:
        needed += sum(zone.connections for zone in config.zones.values())
    return needed + (HTTP_CONNECTIONS_MAX if config.admin.address else 0)


def check_descriptors(config: Config, hooks: Hooks = NO_HOOKS) -> None:
    """Raises ConfigError when the system allows fewer descriptors than ``config`` may use."""
    hard, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[1], descriptors_needed(config, hooks)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"listeners, zones: sessions, connections and the store may need {needed} file descriptors, and "
            f"this process may have {hard}: raise the limit (LimitNOFILE=, ulimit -n), or lower max_sessions "
            "or connections"
        )
