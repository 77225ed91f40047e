"""How much code a message passes, against ceilings that are only lowered: files, changes of file, calls.

A message comes over SMTP and leaves over SMTP on a session that is kept, in one process. The scenarios are those of ``tests.kit.call_count``:
to a smarthost on a client's session that is kept, or that each message has of its own, with 50 recipients, to a host from DNS with the limits of
providers that the relay ships, and with tenants and limits that do not bind. What a change adds here it takes away elsewhere.
``make micro`` prints where the calls are made.
"""

from pathlib import Path

import pytest

from tests.kit.call_count import NAMES, scenario

MESSAGES = 30
CEILINGS = Path(__file__).with_name("ceilings.txt")


def ceilings() -> dict[str, int]:
    lines = [line for line in CEILINGS.read_text().splitlines() if not line.startswith("#")]
    return {name: int(value) for name, value in map(str.split, lines)}


@pytest.mark.parametrize("name", NAMES)
async def test_a_message_passes_no_more_than_the_ceilings(directory: Path, name: str) -> None:
    async with scenario(name, directory) as counted:
        await counted.messages(MESSAGES)
    found = counted.least()
    print(name, *counted.usual()[0])
    most = ceilings()
    over = [
        f"{figure}: {value}, at most {most[f'{name}.{figure}']}"
        for figure, value in found._asdict().items()
        if value > most[f"{name}.{figure}"]
    ]
    assert over == []
