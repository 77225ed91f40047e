"""``zonemta reload``."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import click

from zonemta_py.admin.requests import ReloadRequest
from zonemta_py.cli.common import (
    EXIT_USAGE,
    config_option,
    echo,
    fail,
    json_option,
    print_json,
    read_config,
    reports_errors,
)
from zonemta_py.cli.queue.access import rows_of


@click.command()
@config_option
@json_option
@reports_errors
def reload(config_path: Path, as_json: bool) -> None:
    """Let the running relay read its configuration again, as SIGHUP does, and say what changed.

    Files that it names (certificates, users, tokens, DKIM keys) are read again. Exits 2 and changes nothing when
    the configuration cannot be used, is not the file of the running relay, or when a change needs a restart; exits 1
    when no relay is running.

    \b
    Example:
      zonemta reload -c config/zonemta.yaml
    """
    for row in rows_of(config_path, ReloadRequest(str(config_path.absolute())), relay_only=True):
        if "refused" in row:
            fail(f"not reloaded: {row['refused']}", EXIT_USAGE)
        if as_json:
            print_json(row)
        else:
            echo("reloaded, changed: " + (", ".join(row["changed"]) or "no key"))
            if files := list(_files_of(read_config(config_path))):
                echo(f"read again: {', '.join(files)}")
        for warning in row["warnings"]:
            click.secho(f"warning: {warning}", fg="yellow", err=True)


def _files_of(value: object, key: str = "") -> Iterator[str]:
    """The keys of the files that a configuration names."""
    if is_dataclass(value):
        for each in fields(value):
            yield from _files_of(getattr(value, each.name), f"{key}.{each.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _files_of(item, f"{key}.{name}")
    elif type(value) is tuple:
        for number, item in enumerate(value):
            yield from _files_of(item, f"{key}[{number}]")
    elif isinstance(value, Path) and key.endswith("file"):
        yield key
