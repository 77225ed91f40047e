"""Domains of recipients, living and dead in three ways: the name server and the dead hosts of a scenario.

``domains PORT LIVING DEAD``. Each of LIVING domains ``lN.sink.example`` is at 127.0.0.1. Of DEAD domains ``d0.dead.example``
refuses connections, ``d1…`` drops their packets, ``d2…`` accepts them and says nothing, and so on in turn. Prints
``ready`` and the port of the name server.
"""

import asyncio
import signal
import socket
import sys

from zonemta_py.sink.nameserver import NameServer, Records

REFUSING, DROPPING, SILENT = ADDRESSES = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
SILENT_MAX = 4096  # connections that wait to be accepted


def records(living: int, dead: int) -> Records:
    """An MX for each dead domain, at one of the three addresses; an address for each living one."""
    found: dict[str, dict[str, list[str]]] = {
        f"mx{kind}.dead.example": {"A": [address]} for kind, address in enumerate(ADDRESSES)
    }
    for number in range(dead):
        found[f"d{number}.dead.example"] = {"MX": [f"10 mx{number % 3}.dead.example."]}
    for number in range(living):
        found[f"l{number}.sink.example"] = {"A": ["127.0.0.1"]}
    return found


def listen(address: str, port: int, backlog: int) -> socket.socket:
    """A socket on which nothing is accepted: connections beyond ``backlog`` wait for an answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(backlog)
    return sock


def fill(address: str, port: int) -> list[socket.socket]:
    """Connections that fill a backlog of 0, so that the packets of others are dropped."""
    sockets = []
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((address, port))
        sockets.append(sock)
    return sockets


async def serve(port: int, living: int, dead: int) -> None:
    """Until SIGTERM."""
    names = NameServer(records(living, dead))
    names_port = await names.start()
    sockets = []
    if dead:
        sockets = [listen(SILENT, port, SILENT_MAX), listen(DROPPING, port, 0), *fill(DROPPING, port)]
    print("ready", names_port, flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    names.close()
    for sock in sockets:
        sock.close()


if __name__ == "__main__":
    asyncio.run(serve(*(int(argument) for argument in sys.argv[1:])))
