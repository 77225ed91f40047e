"""5. A message posted to a server by WSGI arrives: its length is said, and the body is not chunked."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from tests.kit.deadlines import until_blocking
from tests.kit.local_transport import HEADER, delivered
from zonemta_py.bench import peers
from zonemta_py.transports.http import HttpTransport

CHUNKS = [b"a" * 70_000, b"\r\n", b"b" * 70_000]

EDGE = """\
import base64, sys, warnings
warnings.filterwarnings("ignore")
from gevent import monkey
monkey.patch_all()
from slimta.edge.wsgi import WsgiEdge
from slimta.queue import Queue
from slimta.queue.dict import DictStorage

class Kept(DictStorage):
    def write(self, envelope, timestamp):
        header, body = envelope.flatten()
        with open(sys.argv[1], "wb") as file:
            file.write(header + body)
        return super().write(envelope, timestamp)

edge = WsgiEdge(Queue(Kept(), None), listener=("127.0.0.1", 0))
edge.server.init_socket()
print(edge.server.address[1], flush=True)
edge.start()
edge.get()
"""


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def wsgi(received: list[bytes]) -> Iterator[str]:
    """The URL of the standard library's WSGI server."""

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        received.append(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        start_response("204 No Content", [])
        return []

    with make_server("127.0.0.1", 0, application, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


async def test_the_standard_library(directory: Path) -> None:
    received: list[bytes] = []
    with wsgi(received) as url:
        transport = HttpTransport(url, 30, "relay.example")
        assert (await delivered(transport, *CHUNKS)).code == 250
        transport.close()
    assert received == [HEADER + b"\r\n" + b"".join(CHUNKS)]


@pytest.mark.skipif(bool(peers.SlimtaRelay.missing()), reason=peers.SlimtaRelay.missing())
async def test_slimta(directory: Path) -> None:
    """python-slimta's own HTTP edge queues what was sent."""
    script, queued = directory / "edge.py", directory / "queued"
    script.write_text(EDGE)
    command = [str(peers._python()), str(script), str(queued)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    try:
        transport = HttpTransport(f"http://127.0.0.1:{port}/", 30, "relay.example")
        assert (await delivered(transport, *CHUNKS)).code == 250
        transport.close()
        until_blocking(queued.exists, "the message")
        assert queued.read_bytes().endswith(b"".join(CHUNKS))
    finally:
        process.kill()
        process.communicate()
