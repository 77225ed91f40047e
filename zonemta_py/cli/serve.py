"""``zonemta serve``."""

import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import click

from zonemta_py.cli.common import config_option, read_config, reports_errors
from zonemta_py.config.schema import Config
from zonemta_py.core import faults
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.logs import configure_logs
from zonemta_py.core.loop import loop_factory
from zonemta_py.relay.relay import Relay
from zonemta_py.relay.repair import accept_older_queue

log = logging.getLogger("zonemta_py")


@click.command()
@config_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Log messages of this level and above.",
)
@click.option(
    "--log-events",
    is_flag=True,
    help="Also write every event (delivered, deferred, …) to stderr as JSON.",
)
@click.option(
    "--queue-is-older",
    is_flag=True,
    help="Start although the queue is older than its event log, as after the restore of a backup.",
)
@reports_errors
def serve(config_path: Path, log_level: str, log_events: bool, queue_is_older: bool) -> None:
    """Run the relay in the foreground.

    Logs to stderr. When every listener accepts connections, prints a line that begins with "ready" on
    stdout. SIGTERM or SIGINT stops it in order (exit 0), SIGHUP reloads the configuration, SIGALRM makes
    all deferred mail due now. Exits 2 when the configuration cannot be used, 111 when another process
    has the queue open.

    \b
    Example:
      zonemta serve -c config/zonemta.yaml
    """
    configure_logs(log_level)
    config = read_config(config_path)
    if not config.listeners and not config.admin.mail:
        raise ConfigError(f"{config_path}: listeners: at least one is required, or admin.mail: true")
    if faults.VARIABLE in os.environ:
        faults.arm(os.environ[faults.VARIABLE])
        log.warning("%s is set: this relay will kill itself at that point", faults.VARIABLE)
    if queue_is_older:
        accept_older_queue(config)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(config, config_path, log_level, log_events))


def _echo_events(lines: bytes) -> None:
    click.echo(lines.decode(), err=True, nl=False)


async def _serve(config: Config, path: Path, log_level: str, log_events: bool) -> None:
    on_events = _echo_events if log_events else None
    relay = Relay(config, log_level, on_events=on_events)
    await relay.start()
    # The objects that exist now live until the end: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    flushes: set[asyncio.Task[int]] = set()

    def flush() -> None:
        task = asyncio.ensure_future(relay.flush())
        flushes.add(task)
        task.add_done_callback(flushes.discard)

    loop.add_signal_handler(signal.SIGALRM, flush)
    loop.add_signal_handler(signal.SIGHUP, lambda: relay.reload(lambda: read_config(path)))
    click.echo("ready " + " ".join(str(address) for address in relay.addresses))
    sys.stdout.flush()
    await stop.wait()
    began_s = monotonic_s()
    log.info("stopping; transactions in progress have %.0f s to finish", config.shutdown_grace)
    await relay.stop()
    log.info("stopped in %.1f s", monotonic_s() - began_s)
