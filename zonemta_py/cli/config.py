"""``zonemta config``, ``check``, ``reload``, ``log-level`` and ``import-shaping``: the files of the configuration."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from zonemta_py.admin.control_client import ask, is_running
from zonemta_py.admin.requests import LogLevel, LogLevelRequest, ReloadRequest, SummaryRequest
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    EXIT_USAGE,
    config_option,
    echo,
    fail,
    json_option,
    print_json,
    read_config,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.options import EXISTING_FILE
from zonemta_py.config.imports.kumomta import import_kumomta
from zonemta_py.config.imports.model import Imported
from zonemta_py.config.imports.powermta import import_powermta
from zonemta_py.config.load import to_yaml
from zonemta_py.config.plain import plain_values
from zonemta_py.config.providers import SMARTHOST, load_providers
from zonemta_py.config.schema import Config
from zonemta_py.config.shaping import check_rule_providers, load_shaping
from zonemta_py.config.zones import DELIVERY_KEYS, DestinationTable, Zone
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.model import STATES
from zonemta_py.core.runtime import slow_build
from zonemta_py.core.text import escaped
from zonemta_py.queue.census import zones_on_disk
from zonemta_py.relay.preflight import check_addresses, verify, warnings
from zonemta_py.smtp.address import AddressError, normalise_domain
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import open_store, store_directory

IMPORTS = {"kumomta": import_kumomta, "powermta": import_powermta}
HEAD = "# Imported from {name} by `zonemta import-shaping`. Read it before you use it.\n"


@click.group()
def config() -> None:
    """Show a configuration as the relay understands it.

    \b
    Example:
      zonemta config show -c config/zonemta.yaml --domain gmail.com
    """


@config.command(short_help="Print every key with its value.")
@config_option
@zone_option
@click.option(
    "--domain", metavar="DOMAIN", help="How mail to this recipient domain is sent, in each zone."
)
@json_option
@reports_errors
def show(config_path: Path, zone: str | None, domain: str | None, as_json: bool) -> None:
    """Print every key with its value: from the file, inherited from zones.default, or the default.

    With --domain: what applies to mail for one domain, with the item of `destinations` that says so.
    Secrets in URLs (a name and password, the values of a query) and in pipe.command (what follows a name such as password)
    are left out; other arguments and the paths of URLs are shown. Exits 2 when the configuration cannot be used.

    \b
    Examples:
      zonemta config show -c config/zonemta.yaml
      zonemta config show -c config/zonemta.yaml --zone bulk --domain gmail.com
    """
    found = read_config(config_path)
    if zone is not None and zone not in found.zones:
        raise ConfigError(f"no zone '{zone}'; zones: {', '.join(sorted(found.zones))}")
    names = [zone] if zone is not None else list(found.zones)
    if domain is not None:
        values: Any = {"zones": {name: _for_domain(found, name, domain) for name in names}}
    else:
        values = plain_values(found)
        if zone is not None:
            values = {"zones": {zone: values["zones"][zone]}}
    if as_json:
        print_json(values)
    else:
        echo(to_yaml(values).removesuffix("\n"))


def _for_domain(config: Config, name: str, domain: str) -> dict[str, Any]:
    """The settings of zone ``name`` for mail to ``domain``. Raises ConfigError when it is not a domain."""
    try:
        normalised = normalise_domain(domain)
    except AddressError as exc:
        raise ConfigError(f"--domain: found '{domain}': {exc}") from exc
    table = DestinationTable(config.zones[name])
    destination = table.name_of(normalised)
    number, zone = table.number(normalised), table.settings(destination)
    values = plain_values(zone)
    return {
        "matched": f"destinations[{number - 1}]" if number else "the zone",
        "queued_as": destination,
        "provider": _provider(config, zone, normalised),
        "connections": zone.connections_per_domain,
        **{key: values[key] for key in DELIVERY_KEYS},
    }


def _provider(config: Config, zone: Zone, domain: str) -> str:
    """Whose limits the mail has, as far as that is known without DNS."""
    if zone.smarthost:
        return SMARTHOST
    table = load_providers(config.providers.file, shipped=config.providers.shipped)
    return (
        table.of_domain(domain)
        or "that of its MX hosts: `zonemta queue summary --by destination` shows it"
    )


@click.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Validate a configuration, and the files, directories and addresses it names.

    Prints the warnings that `zonemta serve` logs, and zones with mail that the configuration lacks.

    Exits 0 when `zonemta serve` could start with it. Otherwise prints file, line, key, the value found
    and the values allowed, and exits 2.

    \b
    Example:
      zonemta check -c config/zonemta.yaml
    """
    config = read_config(config_path)
    verify(config)
    found = list(warnings(config, config.hostname or socket.getfqdn()))
    running = is_running(config.queue.directory)
    if not running:
        found += check_addresses(config)
    found += _missing_zones(config, running=running)
    found += filter(None, [slow_build()])
    listeners = [str(listener.address) for listener in config.listeners]
    for warning in [] if as_json else found:
        click.secho(f"warning: {escaped(warning)}", fg="yellow", err=True)
    if as_json:
        print_json(
            {"ok": True, "listeners": listeners, "zones": sorted(config.zones), "warnings": found}
        )
    else:
        click.echo(
            f"{config_path}: ok (listeners {', '.join(listeners)}; zones {', '.join(sorted(config.zones))})"
        )


def _missing_zones(config: Config, *, running: bool) -> Iterator[str]:
    """A warning for each zone that has mail and is not in ``config``, as far as the queue can be read here."""
    try:
        found = _zones_of_relay(config) if running else _zones_on_disk(config)
    except LocalError:
        return
    for zone in sorted(found - config.zones.keys()):
        moves = config.zone_removed == "default"
        what = (
            "a start moves it to default, a reload is refused"
            if moves
            else "start and reload are refused"
        )
        yield f"zones: mail waits in zone '{zone}', which this configuration lacks: {what} (zone_removed)"


def _zones_of_relay(config: Config) -> set[str]:
    rows = ask(config.queue.directory, SummaryRequest())
    return {row["zone"] for row in rows if any(row[state] for state in STATES)}


def _zones_on_disk(config: Config) -> set[str]:
    directory = store_directory(config.queue)
    if directory is None or not directory.exists():
        return set()
    store = open_store(config.queue, access=Access.READ)
    try:
        return zones_on_disk(store)
    finally:
        store.close()


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


@click.command("log-level")
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@config_option
@json_option
@reports_errors
def log_level(level: LogLevel, config_path: Path, as_json: bool) -> None:
    """Change which messages the running relay logs, until its end: those of LEVEL and above.

    \b
    Example:
      zonemta log-level debug -c config/zonemta.yaml
    """
    for row in rows_of(config_path, LogLevelRequest(level), relay_only=True):
        if as_json:
            print_json(row)
        else:
            echo(f"messages of the level {row['level']} and above are logged")


@click.command()
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "--format",
    "kind",
    type=click.Choice([*IMPORTS]),
    help="What FILE is.  [default: kumomta for .toml, else powermta]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    show_default="the current directory",
    help="Where providers.yaml and shaping.yaml are written.",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option
@reports_errors
def import_shaping(file: Path, kind: str | None, output: Path, force: bool, as_json: bool) -> None:
    """Turn KumoMTA's shaping TOML, or PowerMTA's domains and pattern lists, into providers.yaml and shaping.yaml.

    What has no counterpart is listed on standard error, with its line. A file with nothing of the format is refused. docs/shaping_import.md says what becomes of what.

    \b
    Examples:
      zonemta import-shaping /opt/kumomta/etc/policy/shaping.toml -o /etc/zonemta
      zonemta import-shaping /etc/pmta/config --format powermta -o /tmp
    """
    kind = kind or ("kumomta" if file.suffix == ".toml" else "powermta")
    found = IMPORTS[kind](file, load_providers(None, shipped=True))
    paths = _write(found, file, output, force=force)
    for each in sorted(found.left):
        click.echo(f"{file}:{each.line}: {each.text}", err=True)
    counts = {"providers": len(found.providers), "rules": len(found.rules), "left_out": len(found.left)}
    if as_json:
        print_json({**counts, "files": [str(path) for path in paths]})
    else:
        click.echo(
            f"{', '.join(map(str, paths))}: {counts['providers']} providers, {counts['rules']} rules; "
            f"{counts['left_out']} remarks"
        )


def _write(found: Imported, source: Path, output: Path, *, force: bool) -> list[Path]:
    """Write both files, if the relay can use them; an error names ``source``. Raises ConfigError, OSError."""
    contents = {"providers.yaml": {"providers": found.providers}, "shaping.yaml": {"rules": found.rules}}
    paths = [output / name for name in contents]
    taken = [str(path) for path in paths if path.exists()]
    if taken and not force:
        raise ConfigError(f"{', '.join(taken)}: there already; --force replaces")
    texts = {name: HEAD.format(name=source.name) + to_yaml(each) for name, each in contents.items()}
    with TemporaryDirectory() as directory:
        for name, text in texts.items():
            Path(directory, name).write_text(text, encoding="utf-8")
        try:
            table = load_providers(Path(directory, "providers.yaml"), shipped=True)
            rules = load_shaping(Path(directory, "shaping.yaml"), shipped=False)
            check_rule_providers(rules, table)
        except ConfigError as exc:
            text = str(exc).removeprefix(f"{directory}/")
            raise ConfigError(
                f"{source}: what was made of it cannot be used, change or remove it there: {text}"
            ) from exc
    output.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths
