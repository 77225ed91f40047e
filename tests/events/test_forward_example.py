"""docs/examples/forward_events.py posts each event to a real web server, also when that refuses some."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from runpy import run_path
from typing import ClassVar

import pytest

import zonemta_py
from tests.kit.relay import empty, relaying, send, staged

EXAMPLE = Path(zonemta_py.__file__).parents[1] / "docs" / "examples" / "forward_events.py"


class Receiver(BaseHTTPRequestHandler):
    """Takes events, after ``refusals`` requests that it refuses."""

    got: ClassVar[list[dict[str, object]]] = []
    refusals = 0

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if type(self).refusals:
            type(self).refusals -= 1
            self.send_error(503)
            return
        self.got.extend(map(json.loads, data.splitlines()))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


async def test_each_event_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forward_events.py"])
    example = run_path(str(EXAMPLE))
    forward, example_globals = example["forward"], example["forward"].__globals__
    monkeypatch.setitem(example_globals, "LINES", 2)
    monkeypatch.setattr(Receiver, "got", [])
    monkeypatch.setattr(Receiver, "refusals", 0)
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url, state = f"http://127.0.0.1:{server.server_port}/", directory / "state"
        async with staged(directory) as stage:
            await stage.receiver("a.example")
            for number in range(2):
                async with relaying(stage.config()) as relay:
                    for _ in range(2):
                        await send(relay, [f"x{number}@a.example", f"y{number}@a.example"])
                    await empty(relay)
                Receiver.refusals = number
                if number:
                    with pytest.raises(OSError, match="503"):
                        forward(directory / "events", url, state)
                forward(directory / "events", url, state)
                forward(directory / "events", url, state)
        found = [(event["node"], event["seq"], event["position"]) for event in Receiver.got]
        assert len(found) == len(set(found)) == 12
        assert found == sorted(found)
        assert [event["event"] for event in Receiver.got].count("delivered") == 8
    finally:
        server.shutdown()
        server.server_close()
