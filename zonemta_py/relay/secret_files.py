"""Warnings about keys and passwords that every user of this machine can read, and about directories that others can replace."""

import stat
from collections.abc import Iterator
from pathlib import Path

from zonemta_py.config.schema import Config
from zonemta_py.core.files import exposed_parent

SHOWN = 5  # files with a warning of their own


def secret_warnings(config: Config) -> Iterator[str]:
    """A warning for each file with a secret that others may read, at most ``SHOWN``, then one for the others.

    Files that are not there are left out.
    """
    found = 0
    for key, path in _secrets(config):
        try:
            is_open = path is not None and path.stat().st_mode & stat.S_IROTH
        except OSError:
            continue  # `preflight.verify` says so
        found += bool(is_open)
        if is_open and found <= SHOWN:
            yield f"{key}: every user of this machine can read {path}: chmod 600, or 640 for the group of the relay"
    if found > SHOWN:
        yield f"every user of this machine can read {found - SHOWN} more files with keys or passwords: chmod 600 them"


def directory_warnings(config: Config) -> Iterator[str]:
    """A warning for queue and event log below a directory of another user; ``relay.pid`` and ``admin.token`` are in the queue's."""
    for key, path in (("queue", config.queue.directory), ("events", config.events.directory)):
        why = exposed_parent(path)
        if why:
            yield (
                f"{key}.directory: {why}, so another user can replace {path}: let the directories above it belong to root "
                "or to the user of the relay, and have no mode o+w (or a sticky bit)"
            )


def _secrets(config: Config) -> Iterator[tuple[str, Path | None]]:
    for i, entry in enumerate(config.dkim.keys):
        yield f"dkim.keys[{i}].key_file", entry.key_file
    for i, listener in enumerate(config.listeners):
        yield f"listeners[{i}].tls.key_file", listener.tls.key_file
    yield "admin.tls.key_file", config.admin.tls.key_file
    yield "admin.token_file", config.admin.token_file
    for name, zone in config.zones.items():
        for prefix, part in zone.parts():
            yield f"zones.{name}.{prefix}smarthost_auth.password_file", part.smarthost_auth.password_file
