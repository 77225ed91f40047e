"""Groups whose commands are imported when they are used: all together take more than half a second."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are attributes of modules: ``commands_in`` has ``module:attribute`` by name."""

    def __init__(self, *args: Any, commands_in: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands_in = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now; None for an unknown name."""
        place = self._commands_in.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
