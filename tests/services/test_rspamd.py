"""A real rspamd, with its own test messages (GTUBE)."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.kit.deadlines import eventually
from tests.kit.listener import listening
from tests.kit.queue import events
from tests.kit.smtp_client import RawClient
from zonemta_py.bench.process import free_port
from zonemta_py.queue.messages import read_message

GTUBE = {
    "reject": "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X",
    "add header": "YJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X",
}
CONFIG = """
options { gtube_patterns = "all"; enable_test_patterns = true; filters = ""; pidfile = "DIR/pid"; tempdir = "DIR"; dns { nameserver = ["127.0.0.1:1"]; timeout = 0.1s; retransmits = 1; } }
logging { type = "file"; filename = "DIR/log"; }
worker "normal" { bind_socket = "127.0.0.1:PORT"; count = 1; }
actions { reject = 15; add_header = 6; }
"""


@pytest.fixture
async def rspamd(tmp_path: Path) -> AsyncIterator[str]:
    program = shutil.which("rspamd")
    if program is None:
        pytest.skip("rspamd is not installed (Debian: apt-get install rspamd)")
    port = free_port("127.0.0.1")
    config = tmp_path / "rspamd.conf"
    config.write_text(CONFIG.replace("DIR", str(tmp_path)).replace("PORT", str(port)))
    process = await asyncio.create_subprocess_exec(
        program, "-f", "-i", "-c", str(config),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as client:

            async def answers() -> bool:
                assert process.returncode is None, (tmp_path / "log").read_text()
                try:
                    async with client.get(f"{url}/ping") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(answers, "rspamd")
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_its_test_messages(tmp_path: Path, rspamd: str) -> None:
    rest = f"intake: {{scan: {{rspamd: '{rspamd}', unavailable: defer, timeout: 30s}}}}"
    async with (
        listening(tmp_path, "", rest) as which,
        await RawClient.connect(which.address.port) as client,
    ):
        await client.ehlo()

        async def reply_to(text: str) -> str:
            head = b"From: a@b.example\r\nTo: x@a.example\r\nSubject: x\r\nMessage-ID: <1@b.example>\r\n"
            return await client.message(
                head + b"Date: Mon, 23 Nov 2026 09:00:00 +0000\r\n\r\n" + text.encode() + b"\r\n.\r\n"
            )

        good = await reply_to("hello, this is a message")
        assert good.startswith("250")
        assert b"X-Spam" not in read_message(which.queue.store, good.split()[-1])[0].header
        assert (await reply_to(GTUBE["reject"])) == "550 5.7.1 Gtube pattern"
        marked = await reply_to(GTUBE["add header"])
        assert marked.startswith("250")
        assert b"X-Spam: Yes" in read_message(which.queue.store, marked.split()[-1])[0].header
        lines = ("y" * 70 + "\r\n") * 10_000
        assert (await reply_to(lines)).startswith("250")
        assert sum(e["event"] == "accepted" for e in events(which.queue.store)) == 3
