"""Connections in memory, and the names of their hosts, for the loop of a simulation.

A connection has two ``Direction``s. What is written stays in its way for ``delay_s`` and arrives in pieces. States
of a connection::

    open ─▶ one side has ended ─▶ closed
      ├─ reset, when a direction has carried ``Conditions.bytes`` ─▶ closed, with an error on both sides
      └─ cut off: nothing arrives any more, on neither side ─▶ a side that writes has an error after WRITE_TIMEOUT_S

Invariants:

- Bytes arrive in their order, or not at all. A side that has closed answers bytes with a reset, as TCP does.
- A side that does not read holds up its peer: its direction keeps WINDOW_BYTES, the rest counts as not written (``pause_writing``).
- All randomness comes from the generator of the network; connections draw from it in the order in which they are made.

Callers: ``virtual.VirtualLoop`` for ``sock_connect``, ``create_connection`` and ``create_server`` of internet addresses.

Example: ``await loop.create_server(factory, "127.0.1.1", 25)``, then ``await loop.create_connection(other, "127.0.1.1", 25)``.
"""

import asyncio
import errno
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tests.simulation.virtual import OWNER
from zonemta_py.config.endpoints import HostPort
from zonemta_py.delivery.dns import NameNotFound, QueryFailed
from zonemta_py.sink.nameserver import SERVFAIL, SILENT

Address = tuple[str, int]
Factory = Callable[[], asyncio.BaseProtocol]

WINDOW_BYTES = 65_536
HIGH_BYTES, LOW_BYTES = 65_536, 16_384
WRITE_TIMEOUT_S = 900.0
CONNECT_TIMEOUT_S = 130.0
FIRST_PORT = 20_000
GROWTH = 50  # a piece is at least this part of what was carried before: a large message has not a million pieces
TTL_S = 60


class Conditions(NamedTuple):
    """What a connection is like, and how it fails. ``bytes``: carried to one side before it; ``to_client``: which side."""

    delay_s: float = 0.0
    piece_bytes: int = WINDOW_BYTES  # that arrive at once, at most
    pause_s: float = 0.0  # between two pieces
    fault: str = ""  # reset, cut off, stall
    bytes: int = 0
    to_client: bool = False
    stall_s: float = 0.0


USUAL = Conditions()


class Direction:
    """One direction of a connection, to ``reader``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conditions: Conditions, *, fails: bool) -> None:
        self._loop = loop
        self._conditions = conditions
        self._fault = conditions.fault if fails else ""
        self._carried = 0
        self._buffer = bytearray()
        self._is_scheduled = False
        self._has_ended = False  # no byte follows
        self._eof_is_due = False
        self.writer: MemoryTransport
        self.reader: MemoryTransport

    @property
    def unwritten(self) -> int:
        """The bytes that are not in the window."""
        return max(0, len(self._buffer) - WINDOW_BYTES)

    def put(self, data: bytes) -> None:
        """Carry ``data``."""
        if not self._has_ended:
            self._buffer += data
            self._schedule(self._conditions.delay_s)

    def end(self, *, at_once: bool = False) -> None:
        """No byte follows; ``at_once``: nor those that are not in the window."""
        if at_once:
            del self._buffer[WINDOW_BYTES:]
        self._has_ended = self._eof_is_due = True
        self._schedule(self._conditions.delay_s)

    def drop(self) -> None:
        """Carry nothing more."""
        self._has_ended, self._eof_is_due = True, False
        self._buffer.clear()

    def go_on(self) -> None:
        """The reader reads again."""
        self._schedule(0.0)

    def _schedule(self, delay_s: float) -> None:
        if not self._is_scheduled and (self._buffer or self._eof_is_due):
            self._is_scheduled = True
            self._loop.call_later(delay_s, self._arrive, context=self.reader.context)

    def _arrive(self) -> None:
        self._is_scheduled = False
        reader, conditions = self.reader, self._conditions
        if reader.is_cut_off or reader.is_paused:
            return
        size = min(len(self._buffer), max(conditions.piece_bytes, self._carried // GROWTH))
        if self._fault:
            size = min(size, conditions.bytes - self._carried)
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._carried += size
        if piece:
            reader.arrived(piece)
            self.writer.carried()
        if self._fault and self._carried >= conditions.bytes:
            self._fail()
        elif self._buffer:
            self._schedule(conditions.pause_s)
        elif self._eof_is_due:
            self._eof_is_due = False
            reader.ended()

    def _fail(self) -> None:
        fault, self._fault = self._fault, ""
        if fault == "reset":
            for side in (self.writer, self.reader):
                side.fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        elif fault == "cut off":
            self.writer.is_cut_off = self.reader.is_cut_off = True
            if self._buffer:
                self.writer.expect_timeout()
        else:
            self._is_scheduled = True
            self._loop.call_later(self._conditions.stall_s, self._arrive, context=self.reader.context)


class MemoryTransport(asyncio.Transport):
    """One side of a connection. ``context``: that its protocol is called in."""

    _start_tls_compatible = True

    def __init__(
        self, loop: asyncio.AbstractEventLoop, own: Address, peer: Address, context: Context
    ) -> None:
        super().__init__({"sockname": own, "peername": peer})
        self._loop = loop
        self.context = context
        self._protocol: asyncio.BaseProtocol
        self._is_closing = self._is_lost = self._writing_is_paused = self._awaits_timeout = False
        self._has_eof = False
        self.is_paused = True  # until the connection is made
        self.is_cut_off = False
        self.out: Direction
        self.into: Direction

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection is made."""
        self._protocol = protocol
        protocol.connection_made(self)
        self.resume_reading()

    # ---- what the other side does

    def arrived(self, data: bytes) -> None:
        if self._is_closing:
            reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self.into.writer.fail(reset)
            self.fail(None)
        elif isinstance(self._protocol, asyncio.BufferedProtocol):
            while data:
                buffer = self._protocol.get_buffer(len(data))
                size = min(len(buffer), len(data))  # type: ignore[arg-type]  # a buffer has a length
                memoryview(buffer)[:size] = data[:size]
                data = data[size:]
                self._protocol.buffer_updated(size)
        else:
            cast(asyncio.Protocol, self._protocol).data_received(data)

    def ended(self) -> None:
        if not self._is_closing:
            keeps_open = cast(asyncio.Protocol, self._protocol).eof_received()
            if not keeps_open:
                self.close()

    def carried(self) -> None:
        """Bytes have left."""
        if self._writing_is_paused and self.out.unwritten <= LOW_BYTES:
            self._writing_is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self.out.unwritten:
            self._lose(None)

    def fail(self, exc: Exception | None) -> None:
        """The connection is lost."""
        self._is_closing = True
        self.out.drop()
        self._lose(exc)

    def die(self) -> None:
        """Its process is dead."""
        self.is_cut_off = True
        self.out.end()
        self.into.drop()

    def _force_close(self, exc: Exception | None) -> None:
        """As ``fail``: TLS ends a connection so."""
        self.fail(exc)

    def expect_timeout(self) -> None:
        """Bytes have been sent that will not arrive."""
        if not self._awaits_timeout:
            self._awaits_timeout = True
            failure = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            self._loop.call_later(WRITE_TIMEOUT_S, self.fail, failure, context=self.context)

    def _lose(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, exc, context=self.context)

    # ---- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_closing or not data:
            return
        if self.is_cut_off:
            self.expect_timeout()
        self.out.put(bytes(data))
        if self.out.unwritten > HIGH_BYTES and not self._writing_is_paused:
            self._writing_is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._has_eof and not self._is_closing:
            self._has_eof = True
            self.out.end()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.out.end()
            if not self.out.unwritten:
                self._lose(None)

    def abort(self) -> None:
        self._is_closing = True
        self.out.end(at_once=True)
        self._lose(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        self.into.go_on()

    def get_write_buffer_size(self) -> int:
        return self.out.unwritten

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


class MemoryServer:
    """What listens at ``addresses``."""

    def __init__(self, network: "Network", addresses: Sequence[Address], listener: "Listener") -> None:
        self._network = network
        self._addresses = addresses
        self._listener = listener
        self.sockets = [SimpleNamespace(getsockname=lambda at=each: at) for each in addresses]

    def close(self) -> None:
        self._network.forget(self._addresses, self._listener)

    async def wait_closed(self) -> None:
        pass


class Listener(NamedTuple):
    """What makes the protocols of an address. ``context``: that of the process that listens."""

    factory: Factory
    context: Context


class Network:
    """All connections and names of a simulation. ``conditions``: draws what happens on the next connection to an address."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listening: dict[Address, list[Listener]] = {}  # of one relay; they take turns
        self._next_port = FIRST_PORT
        self.conditions: Callable[[Address], Conditions] = lambda to: USUAL
        self.names: Callable[[], Mapping[str, Any]] = dict
        self.name_delay_s: Callable[[str], float | None] = lambda name: 0.0  # None: no answer comes
        self._open: list[tuple[MemoryTransport, MemoryTransport]] = []
        self.connections = self.faults = 0
        self.is_down = False  # no connection is made: the relay is dead

    def listen(self, factory: Factory, hosts: Sequence[str], port: int) -> MemoryServer:
        """Serve at ``port`` of each host; 0: the next one."""
        addresses = [(host, port or self._port()) for host in hosts]
        listener = Listener(factory, copy_context())
        for each in addresses:
            others = self._listening.setdefault(each, [])
            if others and OWNER.get() is None:
                raise OSError(errno.EADDRINUSE, f"{each} is in use")
            others.append(listener)
        return MemoryServer(self, addresses, listener)

    def forget(self, addresses: Sequence[Address], listener: Listener | None = None) -> None:
        """Serve no longer, or without ``listener``."""
        for each in addresses:
            left = [other for other in self._listening.pop(each, ()) if listener not in (None, other)]
            if left:
                self._listening[each] = left

    def kill(self, process: object) -> None:
        """A process is dead: its connections end for their other side, and it gets no byte more."""
        for address, listeners in list(self._listening.items()):
            for each in listeners:
                if each.context.get(OWNER) is process:
                    self.forget([address], each)
        for connection in self._open:
            for side in connection:
                if side.context.get(OWNER) is process:
                    side.die()

    def cut_off(self, addresses: Sequence[Address]) -> None:
        """The process that serves ``addresses`` is dead: its connections end for their other side, and it gets no byte more.

        All other connections are its own, to others.
        """
        self.forget(addresses)
        connections, self._open = self._open, []
        for client, server in connections:
            dead = server if server.get_extra_info("sockname") in addresses else client
            dead.die()

    def open_to(self, host: str) -> int:
        """The number of connections to ``host`` that are open."""
        return sum(
            server.get_extra_info("sockname")[0] == host and not client.is_closing()
            for client, server in self._open
        )

    def _port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def reach(self, address: Address) -> Conditions:
        """The conditions of a new connection to ``address``, when it is made. Raises OSError."""
        conditions = self.conditions(address)
        await asyncio.sleep(conditions.delay_s)
        self.faults += bool(conditions.fault)
        if conditions.fault == "unreachable":
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        if self.is_down or address not in self._listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return conditions

    def connect(
        self, protocol: asyncio.BaseProtocol, source: str, address: Address, conditions: Conditions
    ) -> MemoryTransport:
        """A connection that was reached. Raises OSError when the address does not listen any more."""
        if self.is_down or address not in self._listening:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        loop, own = self._loop, (source, self._port())
        listeners = self._listening[address]
        listeners.append(listener := listeners.pop(0))
        client = MemoryTransport(loop, own, address, copy_context())
        server = MemoryTransport(loop, address, own, listener.context.copy())
        to_server = Direction(loop, conditions, fails=not conditions.to_client)
        to_client = Direction(loop, conditions, fails=conditions.to_client)
        for direction, writer, reader in ((to_server, client, server), (to_client, server, client)):
            direction.writer, direction.reader = writer, reader
            writer.out = reader.into = direction
        self.connections += 1
        self._open = [pair for pair in self._open if not all(each.is_closing() for each in pair)]
        self._open.append((client, server))
        client.begin(protocol)
        server.context.run(lambda: server.begin(listener.factory()))
        return client


class MemoryNames:
    """``delivery.dns.DnsChannel`` whose answers are those of a mapping, as ``sink.nameserver`` has it."""

    is_full = False

    def __init__(self, servers: Sequence[HostPort] | None, timeout_s: float) -> None:
        self._network: Network = cast(Any, asyncio.get_running_loop()).network
        self._timeout_s = timeout_s
        self.is_closed = False

    async def query(self, name: str, rdtype: str) -> Sequence[Any]:
        """As ``DnsChannel.query``."""
        delay_s = self._network.name_delay_s(name)
        found = self._network.names().get(name.lower().rstrip("."))
        if delay_s is None or found == SILENT:
            await asyncio.sleep(self._timeout_s)
            raise QueryFailed("Timeout while contacting DNS servers")
        await asyncio.sleep(delay_s)
        if found == SERVFAIL:
            raise QueryFailed("DNS server returned general failure")
        if found is None:
            raise NameNotFound
        return [SimpleNamespace(ttl=TTL_S, data=_data(rdtype, text)) for text in found.get(rdtype, ())]

    def retire(self) -> None:
        self.is_closed = True

    close = retire


def _data(kind: str, text: str) -> SimpleNamespace:
    if kind == "MX":
        priority, _, exchange = text.partition(" ")
        return SimpleNamespace(priority=int(priority), exchange=exchange.rstrip("."))
    return (
        SimpleNamespace(data=text.strip('"').encode()) if kind == "TXT" else SimpleNamespace(addr=text)
    )


def drawn(r: random.Random, faults: float) -> Conditions:
    """Conditions of the next connection; a part ``faults`` of all of them fails."""
    delay_s = r.choice([0.0, 0.001, 0.02, 0.3])
    slow = faults > 0 and r.random() < 0.2
    pieces = r.choice([1, 7, 100, 1500]) if slow else WINDOW_BYTES
    pause_s = r.choice([0.0, 0.01, 0.5]) if slow and pieces > 1 else 0.0
    if r.random() >= faults:
        return Conditions(delay_s, pieces, pause_s)
    return Conditions(
        delay_s, pieces, pause_s,
        fault=r.choice(["reset", "reset", "cut off", "stall", "unreachable"]),
        bytes=int(r.choice([10, 100, 300, 1000, 6000]) * r.random()),
        to_client=r.random() < 0.5,
        stall_s=r.choice([2.0, 90.0, 400.0, 2000.0]),
    )  # fmt: skip
