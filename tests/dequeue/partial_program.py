"""A channel program that delivers to a, defers b and fails c; perhaps killed by a fault in the middle."""

import asyncio
import sys
from pathlib import Path

from tests.kit.dequeue import opened, run
from zonemta_py.core import faults
from zonemta_py.dequeue import AsyncMessage, Disposition

KINDS = {"a": Disposition.DELIVERED, "b": Disposition.DEFERRED, "c": Disposition.FAILED}


async def main(directory: Path, store: str, fault: str = "") -> None:
    """Deliver what there is; what is sent is in the file ``sent``."""

    async def routine(message: AsyncMessage) -> None:
        for recipient in message.recipients():
            if recipient.address.startswith("a"):
                with (directory / "sent").open("a") as sent:
                    sent.write(f"{recipient.address}\n")
            message.dispose(recipient.address, KINDS[recipient.address[0]])
        await message.finish()

    if fault:
        faults.arm(fault)
    async with opened(directory, store) as queue:
        await run(queue, routine)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
