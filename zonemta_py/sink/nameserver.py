"""A small authoritative name server (DNS over UDP and TCP) for demonstrations and tests."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

SERVFAIL = "SERVFAIL"
SILENT = "SILENT"
RECEIVE_BUFFER_BYTES = 4 << 20  # thousands of queries at once; the kernel may give less
PORTS_TRIED = 50  # until one is free for UDP and for TCP

Records = Mapping[str, Mapping[str, Sequence[str]] | str]


class NameServer(asyncio.DatagramProtocol):
    """Answers from ``records``: name → type → values as in a zone file, or SERVFAIL, or SILENT (no answer).

    A name that is missing is answered with NXDOMAIN, a missing type with an empty answer, a CNAME with the
    records of its target. ``queries`` counts (name, type).
    """

    def __init__(self, records: Records, ttl_s: int = 60) -> None:
        self.records = {name.lower().rstrip("."): value for name, value in records.items()}
        self.ttl_s = ttl_s
        self.queries: Counter[tuple[str, str]] = Counter()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port. Raises OSError when the address is in use."""
        for remaining in reversed(range(1 if port else PORTS_TRIED)):
            try:
                return await self._listen(host, port)
            except OSError:  # a port that is free for UDP may be in use for TCP
                if not remaining:
                    raise
        raise AssertionError

    async def _listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        datagrams = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        try:  # not by local_addr: uvloop leaves its transport open when the port is in use
            datagrams.bind((host, port))
            datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            datagrams.setblocking(False)
        except OSError:
            datagrams.close()
            raise
        bound: int = datagrams.getsockname()[1]
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=datagrams)
        try:
            self._server = await asyncio.start_server(self._serve, host, bound)
        except OSError:
            self._transport.close()
            raise
        return bound

    def close(self) -> None:
        self._transport.close()
        self._server.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer one query, with the flag TC if the answer is too large; ignore any other datagram."""
        answer = self._answered(data)
        if answer is None:
            return
        try:
            wire = answer.to_wire()
        except dns.exception.TooBig:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
            wire = answer.to_wire()
        self._transport.sendto(wire, addr)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the queries of a TCP connection (RFC 7766); one that cannot be read ends it."""
        try:
            while True:
                (size,) = struct.unpack(">H", await reader.readexactly(2))
                answer = self._answered(await reader.readexactly(size))
                if answer is None:
                    break
                wire = answer.to_wire(max_size=65_535)
                writer.write(struct.pack(">H", len(wire)) + wire)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, dns.exception.TooBig):
            pass
        finally:
            writer.close()

    def _answered(self, data: bytes) -> dns.message.Message | None:
        try:
            query = dns.message.from_wire(data)
            question = query.question[0]
        except (dns.exception.DNSException, IndexError):
            return None
        return self._answer(query, question)

    def _answer(
        self, query: dns.message.Message, question: dns.rrset.RRset
    ) -> dns.message.Message | None:
        name = question.name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(question.rdtype)
        self.queries[name, kind] += 1
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA
        for _ in range(8):
            found = self.records.get(name)
            if found == SILENT:
                return None
            if isinstance(found, str):
                response.set_rcode(dns.rcode.SERVFAIL)
                return response
            if found is None:
                response.set_rcode(dns.rcode.NXDOMAIN)
                return response
            owner = dns.name.from_text(name)
            if "CNAME" in found and kind != "CNAME":
                target = found["CNAME"][0]
                response.answer.append(dns.rrset.from_text(owner, self.ttl_s, "IN", "CNAME", target))
                name = target.rstrip(".").lower()
                continue
            if found.get(kind):
                response.answer.append(dns.rrset.from_text(owner, self.ttl_s, "IN", kind, *found[kind]))
            return response
        return response
