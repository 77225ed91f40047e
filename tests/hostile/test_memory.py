"""After hundreds of attacks the relay holds no more memory and no more files than after a few."""

import random
from pathlib import Path

from tests.hostile.test_submitted_messages import ENDS, OK, SMUGGLED
from tests.kit.attacks import item
from tests.kit.deadlines import until
from tests.kit.relay import staged
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import AuditRequest, CheckRequest
from zonemta_py.bench.process import CommandProcess, free_port, rss_anon_bytes

ROUNDS = 60
GROWTH_MAX_BYTES = 8 << 20


def _files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def _attack(port: int, rng: random.Random, number: int) -> None:
    words = [
        b"x" * 60_000, b"NOOP\r\n" * 150, b"\x16\x03\x01\0" * 200 + b"\n", b"EHLO " + b"y" * 300 + b"\r\n",
        b"MAIL FROM:<a@b> SIZE=" + b"9" * 30 + b"\r\n", b"GET / HTTP/1.0\r\n\r\n", b"AUTH PLAIN AAAA\r\n" * 30,
        b"EHLO c\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<x@good.example>\r\nDATA\r\n" + b"h: x\r\n" * 3000 + b"\r\n.\r\n",
        b"EHLO c\r\nMAIL FROM:<a@x.example> ENVID=submission-key-%d\r\nRCPT TO:<x@good.example>\r\nDATA\r\nhalf" % number,
        b"EHLO c\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<x@good.example>\r\nDATA\r\n" + OK[:-5] + rng.choice(ENDS) + SMUGGLED,
        b"EHLO c\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<x@good.example>\r\nDATA\r\n" + b"x" * 200_000,
        b"EHLO c\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<%d@nowhere.invalid>\r\nDATA\r\n" % number + OK,
    ]  # fmt: skip
    for word in words:
        client = await RawClient.connect(port, greeting=False)
        await client.send(word)
        rng.choice([client.reset, client.close, client.half_close])()
        client.close()


@item(1, 2, 4, 8, 10, 13, 15, 22)
async def test_no_growth(directory: Path) -> None:
    rng = random.Random(5)
    async with staged(directory) as stage:
        await stage.receiver("good.example")
        port = free_port()
        stage.config(listeners=[{"address": f"127.0.0.1:{port}"}])
        relay = CommandProcess(
            ["serve", "-c", str(directory / "zonemta.yaml"), "--log-level", "error"], directory / "log"
        )
        try:
            relay.wait_ready()
            for number in range(ROUNDS // 3):
                await _attack(port, rng, number)
            files, memory = _files(relay.pid), rss_anon_bytes(relay.pid)
            for number in range(ROUNDS // 3, ROUNDS):
                await _attack(port, rng, number)
            await until(lambda: _files(relay.pid) <= files + 8, "connections to end")
            grown = rss_anon_bytes(relay.pid) - memory
            assert grown < GROWTH_MAX_BYTES, f"{grown} bytes more"
            await until(
                lambda: not any("recipients" in row for row in ask(directory / "queue", AuditRequest())),
                "an empty queue",
            )
            assert list(ask(directory / "queue", CheckRequest())) == [{"problems": 0}]
            assert relay.stop() == 0
        finally:
            relay.kill()
        assert "Traceback" not in (directory / "log").read_text()
