"""What a simulation must decide comes from few places: clock, random numbers, secrets, threads, sockets.

The commands for a user, the pipeline, the benchmarks and the sink are not simulated. A file of OWN is replaced, or its use does not
reach what a simulation compares; the list is only made shorter.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import zonemta_py

PACKAGE = Path(zonemta_py.__file__).parent
NOT_SIMULATED = {"pipeline", "bench", "cli", "sink"}
FORBIDDEN = {"time", "secrets", "uuid", "threading"}  # modules
RANDOM = {"os.urandom", "random.random", "random.choice", "random.randint", "random.shuffle", "random.uniform"}  # fmt: skip
SOCKETS = {"socket.socket", "socket.create_server", "socket.create_connection", "socket.socketpair", "socket.fromfd"}  # fmt: skip
OWN = {
    "core/clock.py": {"time"},
    "core/runtime.py": {"threading"},
    "core/logs.py": {"socket.socket"},  # of journald
    "transports/connect.py": {"socket.socket"},
    "intake/listener.py": {"socket.socket"},
    "delivery/endpoints.py": {"socket.socket"},  # which address the system chooses; nothing is sent
    "processes/supervisor.py": {"socket.socketpair"},
    "processes/link.py": {"socket.socket"},
    "processes/receiver_process.py": {"socket.socket"},  # of listeners
    "admin/http_server.py": {"socket.socket", "socket.create_server"},
    "admin/control.py": {"socket.socket"},
    "admin/control_client.py": {"socket.socket"},
    "relay/preflight.py": {"socket.socket"},  # `zonemta check`
    "admin/page/logins.py": {"secrets"},
    "admin/tokens.py": {"secrets"},
    "intake/users.py": {"secrets"},  # keys of caches
    "queue/upkeep/startup.py": {"secrets"},  # the name of the queue
    "storage/shared.py": {"secrets", "threading"},
    "storage/remote.py": {"threading"},
    "storage/memory.py": {"threading"},  # locks
    "storage/segments.py": {"threading"},  # locks
    "dequeue/message.py": {"threading"},
}


def used(tree: ast.Module) -> Iterator[str]:
    """The forbidden modules and functions that a module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in FORBIDDEN)
        elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN:
            yield node.module
        elif isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in RANDOM:
            yield name
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in SOCKETS:
            yield name  # elsewhere it is the type of an argument


def test_time_chance_threads_and_sockets_come_from_their_adapters() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.split("/")[0] not in NOT_SIMULATED:
            names = set(used(ast.parse(path.read_text(encoding="utf-8"))))
            if names:
                found[name] = names
    assert found == OWN


def test_what_is_found() -> None:
    text = "import time\nfrom secrets import token_hex\nimport random\nrandom.Random(1)\nrandom.choice([1])\nos.urandom(3)\nsocket.socket()"
    assert set(used(ast.parse(text))) == {
        "time",
        "secrets",
        "random.choice",
        "os.urandom",
        "socket.socket",
    }
