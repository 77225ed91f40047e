"""The group ``zonemta config``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import (
    config_option,
    echo,
    json_option,
    print_json,
    read_config,
    reports_errors,
    zone_option,
)
from zonemta_py.config.destinations import DestinationTable
from zonemta_py.config.load import to_yaml
from zonemta_py.config.plain import plain_values
from zonemta_py.config.providers import SMARTHOST, load_providers
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import DELIVERY_KEYS, Zone
from zonemta_py.core.errors import ConfigError
from zonemta_py.smtp.address import AddressError, normalise_domain


@click.group()
def config() -> None:
    """Show a configuration as the relay understands it.

    \b
    Example:
      zonemta config show -c config/zonemta.yaml --domain gmail.com
    """


@config.command()
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
    return table.of_domain(domain) or "that of its MX hosts: `zonemta queue destinations` shows it"
