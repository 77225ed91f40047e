"""Values on the command line that are written as in the configuration: ``host:port``, ``10m``."""

from collections.abc import Callable

import click

from zonemta_py.config.units import duration, host_port


class Parsed(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A value that one of the configuration's readers understands."""

    def __init__(self, name: str, read: Callable[[object], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The value, or a usage error."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as exc:
            self.fail(f"'{value}' is not {exc}", param, ctx)


HOST_PORT = Parsed("HOST:PORT", host_port)
DURATION = Parsed("DURATION", duration)
