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
from zonemta_py.core import runtime as signals
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.logs import configure_logs, parse_target
from zonemta_py.core.runtime import loop_factory, slow_build
from zonemta_py.relay.preflight import raise_descriptor_limit
from zonemta_py.relay.relay import Relay
from zonemta_py.relay.runner import RelayRunner, accept_older_queue

log = logging.getLogger("zonemta_py")


@click.command()
@config_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log messages of this level and above, instead of log.level.",
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
def serve(config_path: Path, log_level: str | None, log_events: bool, queue_is_older: bool) -> None:
    """Run the relay in the foreground.

    Logs to stderr. When every listener accepts connections, prints a line that begins with "ready" on
    stdout. SIGTERM or SIGINT stops it in order (exit 0), SIGHUP reloads the configuration, SIGALRM makes
    all deferred mail due now. When the queue cannot be written (a full disk, a server that does not answer)
    it is closed, and opened again as soon as that works. Exits 2 when the configuration cannot be used, 111 when another process
    has the queue open.

    \b
    Example:
      zonemta serve -c config/zonemta.yaml
    """
    signals.block()  # if ``cli`` has not; until ``_Signals`` handles them: a stop during the start is a stop
    config = read_config(config_path)
    configure_logs(parse_target(config.log.target(log_level)))
    if not config.listeners and not (config.admin.mail and config.admin.address):
        raise ConfigError(f"{config_path}: listeners: at least one is required, or admin.mail: true")
    if faults.VARIABLE in os.environ:
        faults.arm(os.environ[faults.VARIABLE])
        log.warning("%s is set: this relay will kill itself at that point", faults.VARIABLE)
    if slow := slow_build():
        log.warning("%s", slow)
    if queue_is_older:
        accept_older_queue(config)
    os.umask(0o077)  # queue, event log, what children write: for this user only
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(config, log_level, log_events))


def _echo_events(lines: bytes) -> None:
    click.echo(lines.decode(), err=True, nl=False)


class _Signals:
    """SIGTERM and SIGINT stop, SIGHUP reloads, SIGALRM flushes; one that comes before the start waits for it."""

    def __init__(self, runner: RelayRunner) -> None:
        self.stop = asyncio.Event()
        self._runner = runner
        self._waiting: set[signal.Signals] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        for number in (signal.SIGHUP, signal.SIGALRM):
            loop.add_signal_handler(number, self._received, number)
        signals.unblock()

    def _received(self, number: signal.Signals) -> None:
        relay = self._runner.relay
        if relay is None:
            self._waiting.add(number)
        else:
            task = asyncio.create_task(_reload(relay) if number is signal.SIGHUP else _flush(relay))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def started(self) -> None:
        """Handle the signals that waited."""
        waiting, self._waiting = self._waiting, set()
        for number in waiting:
            self._received(number)


async def _reload(relay: Relay) -> None:
    try:
        await relay.reload()
    except ConfigError as exc:
        log.error("the configuration was not reloaded: %s", exc)


async def _flush(relay: Relay) -> None:
    await relay.flush()


async def _serve(config: Config, log_level: str | None, log_events: bool) -> None:
    on_events = _echo_events if log_events else None
    runner = RelayRunner(lambda config: Relay(config, log_level, on_events=on_events), config)
    signals = _Signals(runner)
    relay = await runner.start()
    # The objects that exist now live until the end: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    click.echo("ready " + " ".join(str(address) for address in relay.addresses))
    sys.stdout.flush()
    await runner.run(signals.stop, signals.started)
