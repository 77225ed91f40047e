"""Large messages do not live in memory."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import staged
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import SummaryRequest
from zonemta_py.bench.process import CommandProcess, rss_anon_bytes

MIB = 1 << 20


async def _send(port: int, size: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"EHLO c.example\r\nMAIL FROM:<>\r\nRCPT TO:<x@a.example>\r\nDATA\r\n")
    await reader.readuntil(b"354 End data with <CR><LF>.<CR><LF>\r\n")
    writer.write(b"Subject: large\r\n\r\n")
    block = (bytes(33 + i % 90 for i in range(76)).replace(b".", b"-") + b"\r\n") * 840
    for _ in range(size // len(block)):
        writer.write(block)
        await writer.drain()
    writer.write(b".\r\n")
    assert (await reader.readline()).startswith(b"250 2.0.0")
    writer.close()


@pytest.mark.timeout(180)
async def test_100_mib_in_and_out_within_16_mib(directory: Path) -> None:
    """Of a warmed process's anonymous memory; LevelDB's mapped files are not counted."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        sink.keep = False
        stage.config(listeners=[{"address": "127.0.0.1:0", "max_message_size": "200MiB"}])
        relay = CommandProcess(
            ["serve", "-c", str(directory / "zonemta.yaml"), "--log-level", "warning"],
            directory / "relay.log",
        )
        try:
            port = int((await asyncio.to_thread(relay.wait_ready))[0].rpartition(":")[2])
            for warm in range(3):
                await _send(port, 24 * MIB)
                await until(lambda warm=warm: sink.tally.messages > warm, "the warm-up", 60)
            await until(lambda: not list(ask(directory / "queue", SummaryRequest())), "an empty queue")
            before = peak = rss_anon_bytes(relay.pid)
            sending = asyncio.ensure_future(_send(port, 100 * MIB))

            def arrived() -> bool:
                nonlocal peak
                peak = max(peak, rss_anon_bytes(relay.pid))
                return sink.tally.messages >= 4 or (sending.done() and sending.exception() is not None)

            await until(arrived, "the large message", 90)
            await sending
            assert sink.tally.size_bytes >= 100 * MIB
            assert peak - before <= 16 * MIB, f"{(peak - before) / MIB:.1f} MiB more"
            assert relay.stop() == 0
        finally:
            relay.kill()
