"""Other relays beside ours: each that is installed takes mail and delivers it; the others say what they need."""

import asyncio
import smtplib
import tempfile
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from zonemta_py.bench.peers import PEERS
from zonemta_py.sink.server import Sink


@pytest.mark.parametrize("name", sorted(PEERS))
async def test_a_peer_relays(name: str) -> None:
    missing = PEERS[name].missing()
    if missing:
        pytest.skip(f"{name}: {missing}")
    sink = Sink()
    port = await sink.start("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as directory:  # pytest's are closed to peers that give up root
        try:
            peer = await asyncio.to_thread(PEERS[name], Path(directory), port)
            try:
                await asyncio.to_thread(submit, peer.port)
                await until(lambda: sink.tally.recipients == 2, "both recipients", 30)
            finally:
                await asyncio.to_thread(peer.stop)
        finally:
            await sink.close()


def submit(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port) as client:
        client.sendmail(
            "s@source.example", ["1@sink.example", "2@sink.example"], "Subject: x\r\n\r\ny\r\n"
        )


def test_zone_mta_says_why_not() -> None:
    assert "MongoDB" in PEERS["zone-mta"].missing()
