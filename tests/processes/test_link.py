"""Frames arrive whole and in order, however the bytes are cut."""

import asyncio
import random
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import scaled, until
from zonemta_py.core.codec import pack, unpacker
from zonemta_py.processes.link import BUFFER_BYTES, Link

decode = unpacker(bytes)


async def make(handle: Any, lost: Any = lambda: None) -> tuple[Link, socket.socket]:
    """A link, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    link = Link(pack, decode, handle, lost)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
    return link, theirs


def framed(data: bytes) -> bytes:
    packed = pack(data)
    return len(packed).to_bytes(4) + packed


@given(st.lists(st.binary(max_size=300_000), max_size=12), st.integers(0, 2**32))
def test_any_cut(frames: list[bytes], seed: int) -> None:
    """As the loop does: get the buffer, fill a part of it, report how much."""

    async def run() -> list[bytes]:
        got: list[bytes] = []
        link = Link(pack, decode, got.append, lambda: None)
        data, rng = b"".join(map(framed, frames)), random.Random(seed)
        while data:
            room = link.get_buffer(-1)
            size = rng.choice([1, 3, 100, 65_536, len(room)])
            part, data = data[: min(size, len(room))], data[min(size, len(room)) :]
            room[: len(part)] = part
            del room
            link.buffer_updated(len(part))
        return got

    assert asyncio.run(run()) == frames


async def test_small_and_large_in_order() -> None:
    got: list[bytes] = []
    first, other = await make(got.append)
    second = Link(pack, decode, lambda frame: None, lambda: None)
    await asyncio.get_running_loop().create_unix_connection(lambda: second, sock=other)
    frames = [bytes([n]) * (3 * BUFFER_BYTES if n % 7 == 0 else 10) for n in range(40)]
    for frame in frames:
        second.send(frame)
    await until(lambda: len(got) == 40, "all frames")
    assert got == frames
    first.close()
    second.close()


async def test_a_corrupt_frame_ends_the_link(caplog: pytest.LogCaptureFixture) -> None:
    lost = asyncio.Event()
    _, other = await make(lambda frame: None, lost.set)
    await asyncio.get_running_loop().sock_sendall(other, b"\0\0\0\0" + b"\0\0\0\2\xc1\xc1")
    await asyncio.wait_for(lost.wait(), scaled(10))
    assert "a frame cannot be read" in caplog.text
    other.close()


async def test_a_frame_that_breaks_its_handler(caplog: pytest.LogCaptureFixture) -> None:
    """Those after it are handled. What is in it, such as the passwords of a configuration, is not for the log."""
    got: list[bytes] = []

    def handle(frame: bytes) -> None:
        if frame == b"secret":
            raise ValueError("a defect")
        got.append(frame)

    link, other = await make(handle)
    await asyncio.get_running_loop().sock_sendall(other, framed(b"secret") + framed(b"good"))
    await until(lambda: got == [b"good"], "the frame behind it")
    assert "a frame was not handled: bytes" in caplog.text
    assert "secret" not in caplog.text
    link.close()
    other.close()
