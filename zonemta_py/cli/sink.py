"""``zonemta sink``."""

import asyncio
import signal
import sys
from pathlib import Path

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.options import DIRECTORY, FILE, HOST_PORT
from zonemta_py.config.units import HostPort
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.loop import loop_factory
from zonemta_py.sink.script import Script, load_script
from zonemta_py.sink.server import Sink
from zonemta_py.sink.tally import Received


@click.command()
@click.option(
    "--listen",
    type=HOST_PORT,
    default="127.0.0.1:2526",
    show_default=True,
    help="Where to listen.",
)
@click.option(
    "--script",
    "script_path",
    type=FILE,
    help="Rules in YAML that defer, refuse, stall or drop.",
)
@click.option("--store", type=DIRECTORY, help="Write every message to a file in this directory.")
@click.option("--count", type=click.IntRange(1), help="Exit after this number of messages.")
@json_option
@reports_errors
def sink(
    listen: HostPort, script_path: Path | None, store: Path | None, count: int | None, as_json: bool
) -> None:
    """Run an SMTP server that receives mail, for tests and benchmarks.

    It accepts every message and prints counts at the end (SIGINT, SIGTERM or --count). A script makes
    it defer, refuse, stall or drop; docs/operations.md describes the rules.

    \b
    Example:
      zonemta sink --listen 127.0.0.1:2526 --script greylist.yaml
    """
    script = load_script(script_path) if script_path else Script(())
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        tally = runner.run(_run(script, store, listen, count))
    if as_json:
        print_json(tally)
    else:
        for name, value in tally.items():
            click.echo(f"{name:<18} {value}")


async def _run(
    script: Script, store: Path | None, listen: HostPort, count: int | None
) -> dict[str, object]:
    """Receive until a signal or ``count`` messages. Raises ConfigError when the address is in use."""
    stop = asyncio.Event()

    def on_message(message: Received) -> None:
        if count is not None and server.tally.messages >= count:
            stop.set()

    server = Sink(script, store=store, on_message=on_message)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        port = await server.start(listen.host, listen.port)
    except OSError as exc:
        raise ConfigError(f"cannot listen on {listen}: {exc}") from exc
    click.echo(f"ready {HostPort(listen.host, port)}", err=True)
    sys.stderr.flush()
    await stop.wait()
    await server.close()
    return server.tally.as_row()
