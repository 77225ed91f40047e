"""zonemta as the relay under test: a fresh queue in a folder, set up as a scenario asks."""

import time
from pathlib import Path

from zonemta_py.admin.control import ask
from zonemta_py.bench.backlog import churn, fill
from zonemta_py.bench.children import Child
from zonemta_py.bench.openssl import make_dkim_key
from zonemta_py.bench.scenarios import Scenario
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError

CONFIG = """\
hostname: relay.bench.example
allow_private_destinations: true
listeners: [{{address: "127.0.0.1:0"{tls}}}]
processes: {processes}
queue: {{directory: queue, min_free_disk: 64MiB, durability: {durability}{queue}}}
events: {{directory: events}}
resolver: {{nameservers: ["127.0.0.1:9"], timeout: 1s}}
zones:
  default: {{smarthost: "127.0.0.1:{sink_port}", connections: {connections}}}
  blocked: {{smarthost: null, port: 9}}
{dkim}
"""
SETTLE_TIMEOUT_S = 300.0
TLS = ", tls: {mode: implicit, certificate: tls.pem, key: tls.key}"
DKIM = "dkim: {keys: [{domain: source.example, selector: bench, key_file: dkim.pem}]}"


class OurRelay:
    """zonemta, ready for ``scenario``. ``queue``: more settings of the queue, as YAML that begins with a comma."""

    def __init__(
        self,
        folder: Path,
        sink_port: int,
        scenario: Scenario,
        *,
        name: str = "zonemta",
        processes: str = "auto/auto",
        durable: bool = True,
        queue: str = "",
    ) -> None:
        self.name = name
        self._folder = folder
        if scenario.dkim:
            make_dkim_key(folder / "dkim.pem")
        if scenario.backlog:
            fill(folder / "queue", scenario.backlog)
        if scenario.churn:
            churn(folder / "queue", scenario.churn)
        receivers, _, senders = processes.partition("/")
        (folder / "zonemta.yaml").write_text(
            CONFIG.format(
                sink_port=sink_port,
                connections=scenario.connections,
                durability="sync" if durable else "none",
                queue=queue,
                dkim=DKIM if scenario.dkim else "",
                tls=TLS if scenario.tls else "",
                processes=f"{{receivers: {receivers}, senders: {senders}}}",
            )
        )
        arguments = ["serve", "-c", str(folder / "zonemta.yaml"), "--log-level", "warning"]
        self._child = Child(arguments, folder / "relay.log")
        self.target = self._child.wait_ready()[0]
        self.pid = self._child.pid
        if scenario.backlog or scenario.churn:
            self.wait_settled()

    def fsyncs(self) -> int:
        """Group commits so far."""
        return int(next(iter(ask(self._folder / "queue", "stats", {})))["fsyncs"])

    def wait_settled(self) -> None:
        """Until the start-up scan is through: what follows is not a restart."""
        end_s = monotonic_s() + SETTLE_TIMEOUT_S
        while next(iter(ask(self._folder / "queue", "stats", {})))["scanning"]:
            if monotonic_s() > end_s:
                raise LocalError("the start-up scan does not end")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it in order."""
        self._child.stop()
