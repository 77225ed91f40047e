"""Parameter types for names that the configuration has, which a shell completes."""

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from zonemta_py.config.load import load_config
from zonemta_py.config.providers import DEFAULT, SMARTHOST, load_providers
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import ConfigError
from zonemta_py.schedule.sources import BY_SYSTEM, names_in_pools


class ConfiguredName(StringParamType):
    """A name of ``--config``, or another one: the command, or the relay, says what is wrong with it."""

    def __init__(self, name: str, known: Callable[[Config], Iterable[str]]) -> None:
        self.name = name
        self._known = known

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names of the configuration that the command line names so far; none if it is not usable."""
        path: Any = ctx.params.get("config_path")
        try:
            known = self._known(load_config(path)) if path else ()
        except ConfigError:
            return []
        return [CompletionItem(each) for each in sorted(known) if each.startswith(incomplete)]


def _providers(config: Config) -> set[str]:
    table = load_providers(config.providers.file, shipped=config.providers.shipped)
    return {SMARTHOST, *table.providers} - {DEFAULT}


def _addresses(config: Config) -> set[str]:
    return {BY_SYSTEM}.union(*names_in_pools(config.pools).values())


ZONE = ConfiguredName("NAME", lambda config: config.zones)
PROVIDER = ConfiguredName("NAME", _providers)
POOL = ConfiguredName("NAME", lambda config: config.pools)
ADDRESS = ConfiguredName("IP", _addresses)
TENANT = ConfiguredName("NAME", lambda config: config.tenants)
