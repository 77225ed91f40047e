"""The tools that measure us are measured too: sink, scripts, source, name server, a whole small bench."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from zonemta_py.bench.measure import Sample, Span, bars, measure, quantile, spans
from zonemta_py.bench.setup import GROUPS, SCENARIOS, Scenario
from zonemta_py.bench.source import Load, make_body, run
from zonemta_py.bench.zonemta import ZonemtaRelay
from zonemta_py.config.endpoints import HostPort
from zonemta_py.core.errors import ConfigError
from zonemta_py.sink.script import Rule, Script, Step, load_script
from zonemta_py.sink.server import Sink


async def _say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_the_sink_counts_and_keeps(directory: Path) -> None:
    sink = Sink(keep=True, store=directory / "mail")
    port = await sink.start()
    session = b"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n..dot\r\nbody\n.\n\r\n.\r\nMAIL FROM:<>\r\nRCPT TO:<c@d>\r\nDATA\r\n.\r\nQUIT\r\n"
    assert (await _say(port, session)).endswith(b"221 2.0.0 Bye\r\n")
    assert [m.data for m in sink.messages] == [b".dot\r\nbody\n.\n\r\n", b""]
    assert sink.tally.as_row()["repeated"] == 1
    assert (directory / "mail/000001.eml").read_bytes() == b".dot\r\nbody\n.\n\r\n"
    await sink.close()


async def test_a_large_message_in_small_pieces() -> None:
    sink = Sink()
    port = await sink.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n")
    body = b"x" * 1000 + b"\r\n"
    for _ in range(300):
        writer.write(body)
        await writer.drain()
    for piece in (b".", b"\r", b"\nQUIT\r\n"):
        writer.write(piece)
        await writer.drain()
    await reader.read()
    assert sink.tally.size_bytes == 300 * len(body)
    writer.close()
    await sink.close()


async def test_scripts(directory: Path) -> None:
    path = directory / "s.yaml"
    path.write_text(
        "- {at: rcpt, recipient: 'no@*', reply: 550 5.1.1 no}\n- {at: rcpt, reply: 451 later, times: 1}\n- {at: dot, stall: 10ms, sender: 'a@*'}\n"
    )
    sink = Sink(load_script(path))
    port = await sink.start()
    answer = await _say(
        port,
        b"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<no@d>\r\nRCPT TO:<c@d>\r\nRCPT TO:<c@d>\r\nDATA\r\nx\r\n.\r\nQUIT\r\n",
    )
    assert [line[:3] for line in answer.split(b"\r\n")[7:-1]] == [
        b"250",
        b"550",
        b"451",
        b"250",
        b"354",
        b"250",
        b"221",
    ]
    await sink.close()
    script = Script([Rule(Step.CONNECT, local="127.0.0.9", drop=True)])
    assert script.match(Step.CONNECT, "", "", [], "127.0.0.1", 1) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1", "s.yaml:1: a: unknown key; allowed: providers, rules"),
        ("1", "a list of rules"),
        ("- 1", "rule 1: expected a mapping"),
        ("- {at: rcpt, rely: x}", "unknown key 'rely'"),
        ("- {at: lunch}", "'at' is one of"),
        ("- {at: rcpt, reply: no}", "reply is a line"),
        ("- {at: rcpt, stall: 5}", "duration"),
        ("[", "s.yaml"),
    ],
)
def test_bad_scripts(directory: Path, text: str, problem: str) -> None:
    (directory / "s.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_script(directory / "s.yaml")


async def test_the_source_sends_what_it_says() -> None:
    sink = Sink()
    port = await sink.start()
    for keep in (True, False):
        result = await run(Load(HostPort("127.0.0.1", port), 3, 10, 2, 5000, keep, "sink.example"))
        assert (result["messages"], result["failed"]) == (10, "")
    assert sink.tally.recipients == 40
    assert 13 <= sink.tally.sessions <= 16
    assert 4000 < len(make_body(5000)) < 6000
    await sink.close()


def test_a_bench_measures(directory: Path) -> None:
    """A small run of real processes: every number is there and makes sense."""
    scenario = SCENARIOS[0].scaled(0.03)  # CPU is counted in hundredths of a second
    seen: list[int] = []
    result = measure(
        scenario, directory, lambda here, port: ZonemtaRelay(here, port, scenario), seen.append
    )
    assert result.deliveries == scenario.messages == sum(seen)
    assert result.per_second > 0
    assert 0 < result.main_cpu_ms <= result.cpu_ms
    assert 0 < result.system_cpu_ms < result.cpu_ms
    assert result.rss_anon_mb > 10
    assert 0 < result.fsyncs < 4
    assert result.written_kb > 1
    assert 0 <= result.p50_ms <= result.p95_ms <= result.p99_ms
    assert "zonemta" in bars("t", [(result.relay, result.per_second)], "deliveries/s")


def small(name: str, messages: int = 60) -> Scenario:
    scenario = next(s for s in SCENARIOS if s.name == name)
    return replace(
        scenario,
        messages=messages,
        sessions=min(scenario.sessions, 5),
        churn=min(scenario.churn, 20_000),
        backlog=min(scenario.backlog, 2_000),
        dead=min(scenario.dead, 100),
        domains=min(scenario.domains, 40),
    )


def test_groups() -> None:
    """Nine grids of sessions; every scenario has its own name."""
    assert len(set(GROUPS["all"])) == len(SCENARIOS)
    assert len(GROUPS["sessions"]) == 9
    assert len(GROUPS["limits"]) == 6
    assert set(GROUPS["standard"]) < set(GROUPS["all"])


@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("tls", "0/0"), ("tls-connect", "1/1"), ("churned", "0/1"), ("dkim", "auto/auto"), ("dkim-ed25519", "0/0"),
        ("deep", "auto/auto"), ("dead", "0/1"), ("auth", "1/0"), ("connect-limits", "0/0"), ("list50-mx", "0/1"), ("sessions-1000x10000", "0/0"),
    ],
)  # fmt: skip
def test_scenarios_and_arrangements(directory: Path, name: str, processes: str) -> None:
    """Each is delivered exactly once, or the run fails."""
    scenario = small(name)
    result = measure(
        scenario,
        directory,
        lambda here, port: ZonemtaRelay(here, port, scenario, processes=processes),
        lambda n: None,
    )
    assert result.deliveries == 60 * scenario.recipients
    assert result.over_time == ()


def test_a_soak_is_watched(directory: Path) -> None:
    """The hour of the benchmark in some seconds: nothing grows that should not."""
    scenario = replace(small("soak", 1200), per_second=200)
    result = measure(
        scenario, directory, lambda here, port: ZonemtaRelay(here, port, scenario), lambda n: None
    )
    assert 4 <= len(result.over_time) <= 12
    first, last = result.over_time[0], result.over_time[-1]
    assert last.rss_anon_mb < first.rss_anon_mb + 20
    assert last.open_files < first.open_files + 50
    assert 0 < last.queue_mb < 100
    assert all(0 <= span.p50_ms <= span.p99_ms for span in result.over_time)


def test_spans() -> None:
    """A part has what fell into it."""
    samples = [Sample(at / 10, 50 + at, 10, 1.5) for at in range(120)]
    found = spans(samples, [float(n) for n in range(1200)], 100)
    assert len(found) == 12
    assert [span.from_s for span in found] == [float(n) for n in range(12)]
    assert found[0] == Span(0.0, 59.0, 10, 1.5, 50.0, 99.0)
    assert found[-1].rss_anon_mb == 169.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
