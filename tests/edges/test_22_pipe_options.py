"""22. An address that begins with a hyphen is never an option of the program that gets the mail."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.local_transport import HEADER
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.local import LocalMessage
from zonemta_py.transports.pipe import PRESETS, PipeTransport


async def body() -> AsyncIterator[bytes]:
    yield b"x\r\n"


async def begin() -> None:
    """The transaction may begin."""


async def run(directory: Path, *arguments: str, sender: str, recipient: str) -> tuple[Reply, list[str]]:
    """The reply, and the arguments that the program got."""
    seen = directory / "seen"
    code = "import sys; open(sys.argv[1], 'w').write('\\n'.join(sys.argv[2:])); sys.stdin.read()"
    transport = PipeTransport([sys.executable, "-c", code, str(seen), *arguments], 30)
    message = LocalMessage("0" * 24, sender, recipient, HEADER, body, begin, len(HEADER) + 5)
    reply = await transport.deliver(message)
    return reply, seen.read_text().splitlines() if seen.exists() else []


@pytest.mark.parametrize("recipient", ["-oQ/tmp@pi.example", "--help@pi.example", "-@pi.example"])
@pytest.mark.parametrize("argument", ["{recipient}", "{user}", "{recipient}/new"])
async def test_a_recipient(directory: Path, recipient: str, argument: str) -> None:
    reply, seen = await run(directory, argument, sender="s@a.example", recipient=recipient)
    assert (reply.code, reply.status, seen) == (550, "5.1.3", [])


async def test_an_extension_and_a_sender(directory: Path) -> None:
    reply, seen = await run(
        directory, "{extension}", sender="s@a.example", recipient="joe+-x@pi.example"
    )
    assert (reply.status, seen) == ("5.1.3", [])
    reply, seen = await run(
        directory, "-f", "{sender}", sender="-s@a.example", recipient="joe@pi.example"
    )
    assert (reply.status, seen) == ("5.1.3", [])


async def test_where_it_cannot_be_an_option(directory: Path) -> None:
    """A word of the operator's in front of it, or another address, is delivered."""
    reply, seen = await run(
        directory, "--to={recipient}", "-d{user}", "{domain}", sender="", recipient="-x@pi.example"
    )
    assert reply.code == 250
    assert seen == ["--to=-x@pi.example", "-d-x", "pi.example"]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
async def test_the_presets(preset: tuple[str, ...]) -> None:
    message = LocalMessage("0" * 24, "-s@a.example", "-x@b.example", HEADER, body, begin, 0)
    assert (await PipeTransport(preset, 1).deliver(message)).status == "5.1.3"
