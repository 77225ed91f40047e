"""A child process that returns every frame: ``python -m tests.processes.echo LEVEL BEAT_S LINK_FD``."""

import asyncio

from zonemta_py.core.codec import pack, unpacker
from zonemta_py.processes.link import Link
from zonemta_py.processes.supervisor import child_main


async def serve(beat_s: float, link_fd: int) -> None:
    ended = asyncio.Event()
    link = Link(pack, unpacker(bytes), lambda frame: link.send(frame), ended.set)
    await link.connect(link_fd, beat_s)
    await ended.wait()


if __name__ == "__main__":
    child_main(serve)
