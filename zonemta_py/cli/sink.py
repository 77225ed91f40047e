"""``zonemta sink``."""

import asyncio
import signal
import sys
from pathlib import Path

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.options import DIRECTORY, FILE, HOST_PORT
from zonemta_py.config.endpoints import HostPort
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.runtime import loop_factory
from zonemta_py.sink.nameserver import NameServer
from zonemta_py.sink.script import Script, load_script
from zonemta_py.sink.server import Received, Sink
from zonemta_py.sink.sink_limits import name_records


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
    help="Rules that defer, refuse, stall or drop, and providers with limits, in YAML.",
)
@click.option(
    "--dns",
    type=HOST_PORT,
    help="Answer DNS here too: the `domains` of the script's providers, and their hosts.",
)
@click.option("--store", type=DIRECTORY, help="Write every message to a file in this directory.")
@click.option("--count", type=click.IntRange(1), help="Exit after this number of messages.")
@json_option
@reports_errors
def sink(
    listen: HostPort,
    script_path: Path | None,
    dns: HostPort | None,
    store: Path | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Run an SMTP server that receives mail, for tests and benchmarks.

    It accepts every message and prints counts at the end (SIGINT, SIGTERM or --count). A script makes
    it defer, refuse, stall or drop, or play mailbox providers with limits, whose violations it counts;
    docs/operations.md describes all keys.

    \b
    A script:
      rules:
        - {at: rcpt, recipient: "no@*", reply: 550 5.1.1 no such user}
      providers:
        - name: bigmail
          local: [127.0.0.21, 127.0.0.22]
          mx: [mx1.bigmail.example, mx2.bigmail.example]
          domains: [a.example, b.example]
          sessions: 20
          sessions_per_address: 5
          messages_per_session: 50
          rate: [10/s, 1000/h]
          rate_total: 100/s
          connect_rate: 60/m
          greylist: 30s
          block: {after: 200 messages within 1m, for: 10m}

    \b
    Example:
      zonemta sink --listen 0.0.0.0:2526 --script providers.yaml --dns 127.0.0.1:5300 --json
    """
    script = load_script(script_path) if script_path else Script(())
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        server = runner.run(_run(script, store, listen, dns, count))
    if as_json:
        print_json(server.as_row())
        return
    for name, value in server.tally.as_row().items():
        click.echo(f"{name:<18} {value}")
    for name, provider in server.providers.items():
        for line in provider.lines():
            click.echo(f"{name:<18} {line}")


async def _run(
    script: Script, store: Path | None, listen: HostPort, dns: HostPort | None, count: int | None
) -> Sink:
    """Receive until a signal or ``count`` messages. Raises ConfigError when an address is in use."""
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
    names = NameServer(name_records(script.providers))
    if dns is not None:
        try:
            await names.start(dns.host, dns.port)
        except OSError as exc:
            await server.close()
            raise ConfigError(f"cannot answer DNS on {dns}: {exc}") from exc
    click.echo(f"ready {HostPort(listen.host, port)}", err=True)
    sys.stderr.flush()
    await stop.wait()
    await server.close()
    if dns is not None:
        names.close()
    return server
