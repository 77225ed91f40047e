"""A channel program that delivers to two and defers one; killed in the middle by a fault."""

import asyncio
import sys
from pathlib import Path

from tests.kit.dequeue import opened, run
from zonemta_py.core import faults
from zonemta_py.dequeue import AsyncMessage, Disposition


async def routine(message: AsyncMessage) -> None:
    """Mixed dispositions."""
    for recipient in message.recipients():
        kind = Disposition.DEFERRED if recipient.address == "b@x.example" else Disposition.DELIVERED
        message.dispose(recipient.address, kind)
    await message.finish()


async def main() -> None:
    """Deliver what there is."""
    faults.arm(sys.argv[2])
    async with opened(Path(sys.argv[1])) as queue:
        await run(queue, routine)


if __name__ == "__main__":
    asyncio.run(main())
