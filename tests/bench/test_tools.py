"""The tools that measure us are measured too: sink, scripts, source, name server, a whole small bench."""

import asyncio
from pathlib import Path

import pytest

from zonemta_py.bench.measure import measure
from zonemta_py.bench.ours import OurRelay
from zonemta_py.bench.plot import bars
from zonemta_py.bench.scenarios import SCENARIOS
from zonemta_py.bench.script import Rule, Script, Step, load_script
from zonemta_py.bench.sink import Sink
from zonemta_py.bench.source import Load, make_body, run
from zonemta_py.config.units import HostPort
from zonemta_py.errors import ConfigError


async def _say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_the_sink_counts_and_keeps(folder: Path) -> None:
    sink = Sink(keep=True, store=folder / "mail")
    port = await sink.start()
    session = b"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n..dot\r\nbody\n.\n\r\n.\r\nMAIL FROM:<>\r\nRCPT TO:<c@d>\r\nDATA\r\n.\r\nQUIT\r\n"
    assert (await _say(port, session)).endswith(b"221 2.0.0 Bye\r\n")
    assert [m.data for m in sink.messages] == [b".dot\r\nbody\n.\n\r\n", b""]
    assert sink.tally.as_row()["repeated"] == 1
    assert (folder / "mail/000001.eml").read_bytes() == b".dot\r\nbody\n.\n\r\n"
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
    assert sink.tally.octets == 300 * len(body)
    writer.close()
    await sink.close()


async def test_scripts(folder: Path) -> None:
    path = folder / "s.yaml"
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
    assert script.match(Step.CONNECT, "", "", [], "127.0.0.1") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1", "a list of rules"),
        ("- 1", "rule 1: expected a mapping"),
        ("- {at: rcpt, rely: x}", "unknown key 'rely'"),
        ("- {at: lunch}", "'at' is one of"),
        ("- {at: rcpt, reply: no}", "reply is a line"),
        ("- {at: rcpt, stall: 5}", "duration"),
        ("[", "s.yaml"),
    ],
)
def test_bad_scripts(folder: Path, text: str, problem: str) -> None:
    (folder / "s.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_script(folder / "s.yaml")


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


def test_a_bench_measures(folder: Path) -> None:
    """A small run of real processes: every number is there and makes sense."""
    scenario = SCENARIOS[0].scaled(0.01)
    seen: list[int] = []
    result = measure(scenario, folder, lambda here, port: OurRelay(here, port, scenario), seen.append)
    assert result.deliveries == scenario.messages == sum(seen)
    assert result.per_second > 0
    assert result.cpu_ms > 0
    assert result.rss_anon_mb > 10
    assert 0 < result.fsyncs < 4
    assert result.written_kb > 1
    assert 0 <= result.p50_ms <= result.p95_ms <= result.p99_ms
    assert "zonemta" in bars("t", [(result.relay, result.per_second)], "deliveries/s")
