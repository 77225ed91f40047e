"""20. Whole commands count as progress, and one stranger leaves sessions to the others."""

import asyncio
from itertools import count
from pathlib import Path

from tests.kit.deadlines import scaled, until
from tests.kit.listener import listening
from tests.kit.smtp_client import RawClient
from zonemta_py.intake.context import TOO_MANY_OF_ADDRESS, TOO_MANY_OF_OWNER, SessionLimits, Stranger

PACE_S = 0.05  # of the client that sends a byte now and then


class Stub:
    """A session."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy

    def close_if_idle(self) -> None:
        pass

    def give_up(self) -> None:
        pass

    def abort(self) -> None:
        pass


def strangers(limits: SessionLimits, count: int, ip: str, now_s: float = 0.0) -> list[str]:
    client = Stranger(ip, is_familiar=False, since_s=now_s)
    return [limits.admit_stranger(Stub(), client, 40) for _ in range(count)]


def test_a_quarter_for_an_address_and_a_reserve_for_the_known() -> None:
    limits = SessionLimits(lambda session: None)
    assert strangers(limits, 11, "192.0.2.1") == [""] * 10 + [TOO_MANY_OF_ADDRESS]
    for number in range(2, 5):
        strangers(limits, 10, f"192.0.2.{number}")
    assert len(limits) == 35
    ours = (("address", "192.0.2.1"),)
    assert [limits.admit_known(Stub(), ours, 40) for _ in range(35)] == [""] * 35
    assert limits.admit_known(Stub(), ours, 40).startswith(TOO_MANY_OF_OWNER)
    assert len(limits) == 40, "the known have the places of strangers"


def test_an_authenticated_client_is_no_stranger() -> None:
    limits = SessionLimits(lambda session: None)
    sessions = [Stub() for _ in range(10)]
    client = Stranger("192.0.2.1", is_familiar=False, since_s=0.0)
    assert [limits.admit_stranger(each, client, 40) for each in sessions] == [""] * 10
    limits.know(sessions[0], (("user", "u"),), 40)
    assert strangers(limits, 2, "192.0.2.1") == ["", TOO_MANY_OF_ADDRESS]
    for each in sessions:
        limits.remove(each)
        limits.remove(each)
    assert strangers(limits, 10, "192.0.2.1") == [""] * 9 + [TOO_MANY_OF_ADDRESS]


async def test_a_byte_now_and_then_is_not_progress(tmp_path: Path) -> None:
    """A command that never ends is idle; one whole command after the other is not."""
    limit = f"    idle_timeout: {round(scaled(1.5) * 1000)}ms"
    async with (
        listening(tmp_path, limit) as relay,
        await RawClient.connect(relay.address.port) as slow,
        await RawClient.connect(relay.address.port) as busy,
    ):
        ended = asyncio.ensure_future(slow.reply())
        for number in count():
            if ended.done():
                break
            await slow.send(b"N")
            if number % 10 == 0:  # there is a limit of commands without a message, too
                assert (await busy.command("NOOP")).startswith("250")
            await asyncio.wait([ended], timeout=PACE_S)
        assert (await ended).startswith("421 4.4.2")
        assert (await busy.command("NOOP")).startswith("250")


async def test_the_accept_queue(tmp_path: Path) -> None:
    """As long as the constant says: the kernel's own figure for the socket."""
    async with listening(tmp_path, "") as relay:
        lines = Path("/proc/net/tcp").read_text().splitlines()
        assert any(f":{relay.address.port:04X} " in line for line in lines)
        with_backlog = await _backlog(relay.address.port)
        await until(lambda: with_backlog in (0, 1024), "the backlog")


async def _backlog(port: int) -> int:
    """Send-Q of a listening socket in ss, or 0 where ss is not installed."""
    try:
        process = await asyncio.create_subprocess_exec(
            "ss", "-Hltn", f"sport = :{port}", stdout=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        return 0
    output, _ = await process.communicate()
    return int(output.split()[2])
