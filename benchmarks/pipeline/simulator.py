"""Compares ``zonemta pipeline simulate`` with real runs of the relay.

    python -m benchmarks.pipeline.simulator --json results.json

The events of one recorded run give the model of the receivers. Then the same load is delivered under other
settings, by a real relay and by the simulation with that model; the error is that of the time until the last
final outcome. Receivers stall and defer some recipients, so that limits determine the time, not the machine.
"""

import argparse
import asyncio
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from zonemta_py.bench.process import CommandProcess, free_port, wait_empty
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.pipeline.events.log import open_log
from zonemta_py.pipeline.send.submission import EnvelopeSubmitter, PlannedEnvelope, SubmitOptions
from zonemta_py.pipeline.simulate.job import SimulateRequest, scenarios, simulate_scenarios
from zonemta_py.pipeline.spark.session import open_session
from zonemta_py.sink.nameserver import NameServer

DRAIN_TIMEOUT_S = 600.0
RECORDED = "connections: 20, connections_per_domain: 10"
SETTINGS = (
    "connections: 20, connections_per_domain: 5",
    "connections: 60, connections_per_domain: 20",
    "connections: 8, connections_per_domain: 20",
    "connections: 100, connections_per_domain: 30, rate: 120/s",
    "connections: 20, connections_per_domain: 10, recipients_per_transaction: 3",
    "connections: 60, connections_per_domain: 20, retry: {delays: [20s], jitter: 0}",
)
RETRY = "retry: {delays: [3s], jitter: 0}"
STALLS_MS = (40, 80, 120, 200)  # at the final dot, by domain
MESSAGES = 3000
CONFIG = """\
listeners: [{{address: "127.0.0.1:0"}}]
queue: {{directory: queue, min_free_disk: 64MiB}}
events: {{directory: events}}
allow_private_destinations: true
resolver: {{nameservers: ["127.0.0.1:{dns}"]}}
zones:
  default: {{port: {port}, {zone}}}
"""


def zone_of(text: str) -> str:
    """The settings of a run, with a short retry delay."""
    return text if "retry" in text else f"{text}, {RETRY}"


def load() -> list[PlannedEnvelope]:
    """Messages for four domains, one to eight recipients each; a fifth of them are deferred once."""
    envelopes = []
    for number in range(MESSAGES):
        domain = f"d{number % 7 % len(STALLS_MS)}.example"
        names = [
            f"{'busy' if (number + n) % 5 == 0 else 'u'}{number}-{n}" for n in range(1 + number % 8)
        ]
        envelopes.append(PlannedEnvelope(f"{number:032x}", [(f"{name}@{domain}", {}) for name in names]))
    return envelopes


async def deliver(directory: Path, text: str) -> float:
    """Deliver the load by a real relay; seconds from the first acceptance to the last final outcome."""
    directory.mkdir()
    hosts = [f"127.0.1.{n + 1}" for n in range(len(STALLS_MS))]
    port = free_port(*hosts)
    records: dict[str, dict[str, list[str]]] = {}
    with ExitStack() as stack:
        for n, (host, stall_ms) in enumerate(zip(hosts, STALLS_MS, strict=True)):
            records[f"d{n}.example"] = {"MX": [f"10 mx.d{n}.example."]}
            records[f"mx.d{n}.example"] = {"A": [host]}
            script = directory / f"{n}.yaml"
            script.write_text(
                f"- {{at: dot, stall: {stall_ms}ms}}\n"
                "- {at: rcpt, recipient: 'busy*', reply: '451 4.7.1 greylisted', times: 1}\n"
            )
            sink = CommandProcess(
                ["sink", "--listen", f"{host}:{port}", "--script", str(script)],
                directory / f"sink{n}.log",
            )
            stack.callback(sink.kill)
            while "ready" not in sink.log.read_text():
                await asyncio.sleep(0.01)
        names = NameServer(records)
        dns = await names.start()
        stack.callback(names.close)
        (directory / "zonemta.yaml").write_text(CONFIG.format(dns=dns, port=port, zone=zone_of(text)))
        relay = CommandProcess(
            ["serve", "-c", str(directory / "zonemta.yaml"), "--log-level", "warning"], directory / "log"
        )
        stack.callback(relay.kill)
        target = relay.wait_ready()[0]
        options = SubmitOptions(
            "news@sender.example", b"Subject: x\r\n\r\nhello\r\n", (target,), connections=16
        )
        submitter = EnvelopeSubmitter(options)
        await submitter.send(load())
        await submitter.aclose()
        await asyncio.to_thread(wait_empty, directory / "queue", DRAIN_TIMEOUT_S)
        await asyncio.to_thread(relay.stop)
    events = [event for path in sealed_segments(directory / "events") for event in read_segment(path)]
    first_ms = min(event["time_ms"] for event in events if event["event"] == "accepted")
    last_ms = max(
        event["time_ms"] for event in events if event["event"] in ("delivered", "bounced", "expired")
    )
    return float(last_ms - first_ms) / 1000


def main() -> None:
    """Record, deliver, simulate, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark = open_session("local[*]")
    rows = []
    with tempfile.TemporaryDirectory(prefix="zonemta-simulator-") as name:
        directory = Path(name)
        asyncio.run(deliver(directory / "recorded", RECORDED))
        for number, text in enumerate(SETTINGS):
            real_s = asyncio.run(deliver(directory / str(number), text))
            configuration = f"zones: {{default: {{{zone_of(text)}}}}}"
            request = SimulateRequest(
                open_log(spark, str(directory / "recorded" / "events")),
                scenarios(configuration, Path("zonemta.yaml"), ()),
            )
            predicted_s = simulate_scenarios(spark, request, lambda text: None)[0]["completed_s"]
            error = predicted_s / real_s - 1
            rows.append({"settings": text, "real_s": round(real_s, 1), "predicted_s": round(predicted_s, 1), "error_percent": round(100 * error, 1)})  # fmt: skip
            print(f"{text}: real {real_s:.1f} s, predicted {predicted_s:.1f} s, {100 * error:+.1f} %", flush=True)  # fmt: skip
    spark.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps({"recorded": RECORDED, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
