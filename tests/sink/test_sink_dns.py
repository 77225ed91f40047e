"""``zonemta sink --dns``: a relay finds the providers of a script by its name server, and delivers to them."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import scaled
from tests.kit.relay import Stage, empty, logged_events, relaying
from zonemta_py.bench.process import free_port
from zonemta_py.cli.main import main
from zonemta_py.config.values import Word
from zonemta_py.sink.sink_limits import SinkLimits, name_records

SCRIPT = """
providers:
  - {name: bigmail, local: [127.0.0.21, 127.0.0.22], mx: [A.Big.example], domains: [one.example, Two.example], rate: 100/s}
  - {name: other, local: [127.0.0.23], domains: [three.example]}
"""
DOMAINS = ("one.example", "two.example", "three.example")


def test_the_records() -> None:
    one = SinkLimits("one", (Word("127.0.0.21"), Word("::1")), domains=(Word("D.example"),))
    assert name_records([one, SinkLimits("two")]) == {
        "mx.one.example": {"A": ["127.0.0.21"], "AAAA": ["::1"]},
        "mx.two.example": {"A": ["127.0.0.1"]},
        "d.example": {"MX": ["10 mx.one.example."]},
    }


async def test_a_relay_and_a_sink_are_all_that_is_needed(directory: Path) -> None:
    (directory / "s.yaml").write_text(SCRIPT)
    port, names_port = free_port("0.0.0.0"), free_port("127.0.0.1")
    sink = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "zonemta_py", "sink", "--listen", f"0.0.0.0:{port}", "--script", str(directory / "s.yaml"),
        "--dns", f"127.0.0.1:{names_port}", "--count", "3", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert sink.stderr is not None
        assert (await asyncio.wait_for(sink.stderr.readline(), scaled(20))).startswith(b"ready")
        config = Stage(directory).config(
            resolver={"nameservers": [f"127.0.0.1:{names_port}"]}, zones={"default": {"port": port}}
        )
        async with relaying(config) as relay:
            for domain in DOMAINS:
                await relay.enqueue("", [f"x@{domain}"], b"Subject: hi\r\n\r\nbody\r\n")
            await empty(relay)
        out, _ = await asyncio.wait_for(sink.communicate(), scaled(20))
    finally:
        if sink.returncode is None:
            sink.kill()
    found = json.loads(out)["providers"]
    assert {name: each["messages"] for name, each in found.items()} == {"bigmail": 2, "other": 1}
    assert {each["mx"] for each in logged_events(directory, "delivered")} == {
        "a.big.example",
        "mx.other.example",
    }


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_that_is_in_use(kind: socket.SocketKind) -> None:
    with socket.socket(type=kind) as server:
        server.bind(("127.0.0.1", 0))
        busy = f"127.0.0.1:{server.getsockname()[1]}"
        listen = f"127.0.0.1:{free_port('127.0.0.1')}"
        found = CliRunner().invoke(main, ["sink", "--listen", listen, "--dns", busy])
    assert found.exit_code != 0
    assert f"cannot answer DNS on {busy}" in found.output
