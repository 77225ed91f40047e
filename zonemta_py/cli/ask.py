"""Execution of an operation for a command: by the relay that runs, or on the queue itself when none does.

A command makes a request and prints the rows of the answer; it does not know who gave it:

    for row in rows_of(config_path, FlushRequest(zone="bulk")):
        print_json(row)

``rows_of`` connects to the control socket in the queue's directory. When no relay listens there, the queue is opened, for reading only
unless the request changes something, and the operation runs here. A request that only a running relay can answer is made with
``relay_only``. A configuration file with a mistake is no obstacle where a relay runs.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import ChangeRequest, Request, ResumeRequest, Row
from zonemta_py.cli.common import EXIT_USAGE, fail, read_config
from zonemta_py.config.load import queue_directory
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import no_such
from zonemta_py.storage.interface import Access


def rows_of(config_path: Path, request: Request, *, relay_only: bool = False) -> Iterator[Row]:
    """The rows of the answer to ``request``. ``relay_only``: a running relay is required.

    A file with a mistake is no obstacle where a relay runs: it is an incident in which the operator makes them.
    Raises ConfigError, QueueLocked, LocalError.
    """
    try:
        config = read_config(config_path)
    except ConfigError as exc:
        yield from _despite(exc, config_path, request)
        return
    directory = config.queue.directory
    if not directory.is_dir():
        fail(f"{directory}: there is no queue yet; the first `zonemta serve` creates it")
    zone = getattr(request, "zone", None)
    if zone and zone not in config.zones and not isinstance(request, ResumeRequest):
        fail(no_such("zone", zone, config.zones), EXIT_USAGE)
    try:
        yield from ask(directory, request)
    except ConnectionRefusedError:
        if relay_only:
            fail(f"{directory}: no relay is running; `zonemta serve` starts one")
        yield from asyncio.run(_offline(config, request))


def _despite(mistake: ConfigError, config_path: Path, request: Request) -> Iterator[Row]:
    """The rows, from the relay that runs on the queue that the file names. Raises ``mistake`` when none does."""
    directory = queue_directory(config_path)
    if directory is None:
        raise mistake
    rows = ask(directory, request)
    try:
        first = next(rows, None)
    except OSError as exc:
        raise mistake from exc
    click.echo(f"warning: {mistake}\nthe running relay has an earlier configuration", err=True)
    if first is not None:
        yield first
        yield from rows


@contextmanager
def following() -> Iterator[None]:
    """For rows that end only when the user interrupts them, which exits 0. The end of the relay exits 1."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(0)
    fail("the relay has stopped: what comes next is not shown; run this again when it is ready")


async def _offline(config: Config, request: Request) -> list[Row]:
    """The rows, from the queue itself. What a command to a running relay does not need is imported here."""
    from zonemta_py.admin.operation import Operations
    from zonemta_py.admin.registry import run_operation
    from zonemta_py.admin.relay_port import RunningRelay
    from zonemta_py.delivery.egress_operator import EgressOperator
    from zonemta_py.open_queue import open_queue

    access = Access.EXISTING if isinstance(request, ChangeRequest) else Access.READ
    queue = open_queue(config, access=access)
    if access is Access.EXISTING:
        queue.commits.start()
    relay = RunningRelay(
        events=config.events.directory,
        tenants=lambda: config.tenants,
        egress=EgressOperator(queue, lambda: config),
    )
    try:
        return [row async for row in run_operation(Operations(queue, relay), request)]
    finally:
        await queue.close()
