"""A running listener on a real queue, without delivery."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trustme

from tests.kit.deadlines import until
from tests.kit.queue import opened
from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.tenants import limit_rules
from zonemta_py.config.values import Size
from zonemta_py.core import clock
from zonemta_py.intake.context import IntakeTurns
from zonemta_py.intake.listener import Intake, Listener, listening_sockets, rspamd_client
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import MessageScanner
from zonemta_py.intake.users import hash_password
from zonemta_py.processes.receiver_process import ReceiverProcess
from zonemta_py.processes.receivers import ReceiverChild
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.storage.open import DiskSpace

HOSTNAME = "relay.example"
way = "direct"  # or "linked"; set by a fixture of tests/intake


def certificate(directory: Path) -> tuple[Path, Path, ssl.SSLContext]:
    """A certificate for localhost: its files, and a context that trusts it."""
    ca = trustme.CA()
    issued = ca.issue_cert("localhost", "127.0.0.1")
    cert, key = directory / "cert.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(cert, append=number > 0)
    ca.cert_pem.write_to_path(directory / "ca.pem")
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return cert, key, context


def users_file(directory: Path) -> Path:
    """One user, ``news``, password ``secret``."""
    path = directory / "users"
    path.write_text(f"# who may submit\nnews:{hash_password('secret')}\n")
    return path


class ListenerUnderTest:
    """The listener, its queue and its address."""

    def __init__(self, queue: Queue, listener: Listener, address: HostPort) -> None:
        self.queue = queue
        self.listener = listener
        self.address = address


def make_config(directory: Path, listener: str = "", rest: str = "") -> Config:
    """A configuration with one listener on a free port; ``listener`` holds more of its keys."""
    if "users_file" in listener and "tenants:" not in rest:
        listener += "\n    senders: any"
    return parse_config(
        f"listeners:\n  - address: 127.0.0.1:0\n{listener}\n{rest}\n", directory / "z.yaml"
    )


@asynccontextmanager
async def listening(
    directory: Path, listener: str = "", rest: str = ""
) -> AsyncIterator[ListenerUnderTest]:
    """A listener as ``make_config`` says."""
    config = make_config(directory, listener, rest)
    config = replace(config, queue=replace(config.queue, directory=directory, min_free_disk=Size(1)))
    async with opened(directory / "queue", clock.now_ms) as queue:
        queue.limits.configure(limit_rules(config.tenants, config.limits))
        [sockets] = await listening_sockets(config.listeners[0].address, 1)
        async with queue_client_for(queue) as client:
            scanner = MessageScanner(config, rspamd_client)
            intake = Intake(client, [sockets], disk_space=DiskSpace(directory, 1), scanner=scanner)
            await intake.start(intake.prepare(config, HOSTNAME, make_router(config)))
            [made] = intake.listeners
            if way == "linked":  # and each step of a session waits for a turn of its own
                made.context.turns = IntakeTurns(asyncio.get_running_loop(), 0.0)
            try:
                yield ListenerUnderTest(queue, made, made.context.settings.address)
            finally:
                await intake.drain(0)
                await scanner.close()


@asynccontextmanager
async def queue_client_for(queue: Queue) -> AsyncIterator[QueueClient]:
    """The queue itself, or what a receiver's process has of it, with a real link between."""
    if way == "direct":
        yield queue
        return
    ours, theirs = socket.socketpair()
    there = Receiver(0, queue, lambda _: None, lambda *_: None)
    await there.attach(ours)
    process = ReceiverProcess([])
    await process.link.connect(theirs.detach(), 60)
    there.welcome()
    await until(lambda: process.queue is not None, "a welcome")
    assert process.queue is not None
    yield process.queue
    process.link.close()
    await until(lambda: there.gone, "the end of the link")


class Receiver(ReceiverChild):
    """The queue's side, without a process of its own at the other end."""

    async def attach(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=sock)

    def _reap(self) -> None:
        pass


def settings_of(which: ListenerUnderTest, **changes: Any) -> None:
    """Change settings under a running listener."""
    context = which.listener.context
    context.settings = replace(context.settings, **changes)
