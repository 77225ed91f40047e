"""python-slimta with its queue in memory, as its queue on disk does not sync either.

Without the reverse look-up of clients and the list of all recipients in Received, which would dominate the
figures; a retry takes five seconds.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

from zonemta_py.bench.peers.peer import ForegroundPeer

SCRIPT = """\
import sys, signal, warnings
warnings.filterwarnings("ignore")
from gevent import monkey
monkey.patch_all()
import gevent
from slimta.edge.smtp import SmtpEdge, SmtpSession
from slimta.policy.headers import AddDateHeader, AddMessageIdHeader, AddReceivedHeader
from slimta.queue import Queue
from slimta.queue.dict import DictStorage
from slimta.relay.smtp.static import StaticSmtpRelay

NAME = "relay.bench.example"


class Session(SmtpSession):
    def BANNER_(self, reply):
        pass


class Received(AddReceivedHeader):
    def _build_for_section(self, envelope, parts):
        pass


port, sink_port = map(int, sys.argv[1:])
relay = StaticSmtpRelay("127.0.0.1", sink_port, pool_size=50, ehlo_as=NAME, idle_timeout=5)
queue = Queue(DictStorage(), relay, backoff=lambda envelope, attempts: 5 if attempts < 1000 else None)
for policy in (AddDateHeader(), AddMessageIdHeader(NAME), Received()):
    queue.add_policy(policy)
edge = SmtpEdge(("127.0.0.1", port), queue, max_size=104857600, hostname=NAME, session_class=Session)
gevent.signal_handler(signal.SIGTERM, edge.kill)
queue.start()
edge.start()
edge.get()
"""


class SlimtaRelay(ForegroundPeer):
    """python-slimta on one core."""

    name = "slimta"

    @classmethod
    def missing(cls) -> str:
        """A Python that has slimta."""
        if _python() is None:
            return "no python3 in PATH has it (pip install python-slimta gevent 'setuptools<81')"
        return ""

    def start(self) -> None:
        """Start the script."""
        script = self.write("relay.py", SCRIPT)
        self.run([str(_python()), str(script), str(self.port), str(self.sink_port)])


@cache
def _python() -> Path | None:
    """The first python3 in PATH that has slimta."""
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        python = Path(directory) / "python3"
        if python.is_file():
            code = "import slimta.edge.smtp, slimta.relay.smtp.static, slimta.queue.dict"
            if not subprocess.run([python, "-c", code], capture_output=True, check=False).returncode:
                return python
    return None
