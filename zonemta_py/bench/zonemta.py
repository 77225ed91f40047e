"""zonemta as the relay under test, with a new queue that is set up for a scenario."""

import time
from contextlib import ExitStack
from pathlib import Path

from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import StatsRequest
from zonemta_py.bench.measure import LOGIN
from zonemta_py.bench.process import CommandProcess
from zonemta_py.bench.setup import Scenario, churn_queue, fill_dead, fill_queue, make_dkim_key
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError
from zonemta_py.intake.users import add_user, hash_password

CONFIG = """\
hostname: relay.bench.example
allow_private_destinations: true
listeners: [{{address: "127.0.0.1:0"{tls}{auth}}}]
processes: {processes}
queue: {{directory: queue, min_free_disk: 64MiB, durability: {durability}{queue}}}
events: {{directory: events}}
resolver: {{nameservers: ["127.0.0.1:{names_port}"], timeout: 5s}}
zones:
  default: {{{route}, connections: {connections}}}
  blocked: {{smarthost: null, port: 9, connections: 100}}
{dkim}
{pool}
"""
SETTLE_TIMEOUT_S = 300.0
TLS = ", tls: {mode: implicit, certificate_file: tls.pem, key_file: tls.key}"
AUTH = ", trusted_networks: [], senders: any, auth: {users_file: users, require_tls: false}"
FREE_POOL = "pools: {default: [{address: 127.0.0.31}, {address: 127.0.0.32}]}"
LIMITED_POOL = """\
providers: {file: providers.yaml}
warmup: {file: warmup.yaml}
pools:
  default:
    - {address: 127.0.0.31, limits: {sessions: 2000, rate: [1000000/s, 1000000000/d]}}
    - {address: 127.0.0.32, limits: {sessions: 2000, rate: [1000000/s, 1000000000/d]}}
"""
FILES_OF_LIMITS = {
    "providers.yaml": """\
providers:
  bench:
    mx: ["*.sink.example"]
    limits:
      {sessions: 4000, sessions_per_address: 2000, messages_per_session: 100000, rate: [1000000/s, 1000000000/d], connect_rate: 1000000/m}
""",
    "warmup.yaml": "- {address: 127.0.0.31, begins: 2026-01-01, daily: [1000000000], provider: bench}\n",
}
DKIM = "dkim: {keys: [{domain: source.example, selector: bench, key_file: dkim.pem}]}"


class ZonemtaRelay:
    """zonemta, ready for ``scenario``.

    ``queue`` holds more settings of the queue, as YAML that begins with a comma.
    """

    def __init__(
        self,
        directory: Path,
        sink_port: int,
        scenario: Scenario,
        *,
        name: str = "zonemta",
        processes: str = "auto/auto",
        durable: bool = True,
        queue: str = "",
    ) -> None:
        self.name = name
        self._directory = directory
        _prepare(directory, scenario)
        self._started: list[CommandProcess] = []
        try:
            names_port = self._serve_names(sink_port, scenario) if scenario.domains else "9"
            self._serve(sink_port, scenario, names_port, processes, durable=durable, queue=queue)
        except BaseException:
            for each in self._started:
                each.kill()
            raise

    def _serve_names(self, sink_port: int, scenario: Scenario) -> str:
        """Start a name server; returns its port."""
        arguments = [str(sink_port), str(scenario.domains), str(scenario.dead)]
        log = self._directory / "domains.log"
        names = CommandProcess(arguments, log, module="zonemta_py.bench.setup")
        self._started.append(names)
        return names.wait_ready()[0]

    def _serve(
        self, sink_port: int, scenario: Scenario, names_port: str, processes: str, *, durable: bool, queue: str
    ) -> None:  # fmt: skip
        directory = self._directory
        receivers, _, senders = processes.partition("/")
        (directory / "zonemta.yaml").write_text(
            CONFIG.format(
                names_port=names_port,
                route=f"port: {sink_port}"
                if scenario.domains
                else f'smarthost: "127.0.0.1:{sink_port}"',
                connections=scenario.connections,
                durability="sync" if durable else "none",
                queue=queue,
                dkim=DKIM if scenario.dkim else "",
                tls=TLS if scenario.tls else "",
                auth=AUTH if scenario.auth else "",
                pool={"free": FREE_POOL, "limited": LIMITED_POOL}.get(scenario.pool, ""),
                processes=f"{{receivers: {receivers}, senders: {senders}}}",
            )
        )
        arguments = ["serve", "-c", str(directory / "zonemta.yaml"), "--log-level", "warning"]
        relay = CommandProcess(arguments, directory / "relay.log")
        self._started.append(relay)
        self.target = relay.wait_ready()[0]
        self.pid = relay.pid
        if scenario.backlog or scenario.churn or scenario.dead:
            self.wait_settled()

    def fsyncs(self) -> int:
        """The number of group commits so far."""
        return int(next(iter(ask(self._directory / "queue", StatsRequest())))["fsyncs"])

    def wait_settled(self) -> None:
        """Wait for the end of the start-up scan, so that it is not measured. Raises LocalError when it hangs."""
        end_s = monotonic_s() + SETTLE_TIMEOUT_S
        while next(iter(ask(self._directory / "queue", StatsRequest())))["scanning"]:
            if monotonic_s() > end_s:
                raise LocalError("the start-up scan does not end")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it, and its name server, with SIGTERM."""
        with ExitStack() as stack:
            for each in self._started:
                stack.callback(each.stop)


def _prepare(directory: Path, scenario: Scenario) -> None:
    """Create what the relay of ``scenario`` finds when it starts."""
    if scenario.dkim:
        make_dkim_key(directory / "dkim.pem", scenario.dkim)
    if scenario.backlog:
        fill_queue(directory / "queue", scenario.backlog)
    if scenario.churn:
        churn_queue(directory / "queue", scenario.churn)
    if scenario.dead:
        fill_dead(directory / "queue", scenario.dead)
    for name, text in FILES_OF_LIMITS.items() if scenario.pool == "limited" else ():
        (directory / name).write_text(text)
    if scenario.auth:
        name, _, password = LOGIN.partition(":")
        add_user(directory / "users", name, hash_password(password))
