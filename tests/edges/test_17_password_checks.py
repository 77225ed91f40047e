"""17. Guessing passwords delays nothing else and ends; a right password is cheap the second time."""

import asyncio
import base64
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import ListenerUnderTest, listening
from tests.kit.queue import events
from tests.kit.smtp_client import RawClient
from zonemta_py.core.networks import network_of
from zonemta_py.intake import users as authentication
from zonemta_py.intake.users import (
    BLOCKED,
    BUSY,
    STILL_WRONG,
    WRONG,
    PasswordChecks,
    Users,
    hash_password,
)
from zonemta_py.queue.submitters.limits import FAILURES_MAX

HASH = hash_password("right")


class Counted(Users):
    """Counts the hashes that are computed."""

    def __init__(self, hashes: dict[str, str]) -> None:
        super().__init__(hashes)
        self.computed = 0

    def verify(self, name: str, password: str) -> bool:
        self.computed += 1
        return super().verify(name, password)


async def checked(
    checks: PasswordChecks, users: Users, password: str, ip: str = "192.0.2.1", name: str = "u"
) -> str:
    result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    checks.check(users, name, password, ip, result.set_result)
    return await result


async def test_a_right_password_is_remembered() -> None:
    """Until its hash changes, or its time is over."""
    checks, users = PasswordChecks(0), Counted({"u": HASH})
    assert [await checked(checks, users, "right") for _ in range(5)] == [""] * 5
    assert users.computed == 1
    changed = Counted({"u": hash_password("other")})
    assert await checked(checks, changed, "right") == WRONG
    assert changed.computed == 1
    checks.close()


async def test_it_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "REMEMBERED_S", 0.0)
    checks, users = PasswordChecks(0), Counted({"u": HASH})
    assert [await checked(checks, users, "right") for _ in range(2)] == [""] * 2
    assert users.computed == 2
    checks.close()


async def test_guessing_is_blocked_by_network() -> None:
    """Ten wrong ones, then 421 without computing; the neighbours of an IPv6 client share its number."""
    checks, users = PasswordChecks(0), Counted({"u": HASH})
    for number in range(FAILURES_MAX):
        assert await checked(checks, users, f"wrong{number}", f"2001:db8::{number:x}") == WRONG
        assert await checked(checks, users, "wrong0", "2001:db8::1") in (STILL_WRONG, BLOCKED)
    assert await checked(checks, users, "right", "2001:db8::ffff") == BLOCKED
    assert users.computed == FAILURES_MAX
    assert await checked(checks, users, "right", "2001:db8:0:1::1") == ""
    assert network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("not an address") == "not an address"
    checks.close()


async def test_the_number_of_checks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different logins of strangers; many sessions with the same one at once are one check."""
    monkeypatch.setattr(authentication, "WAITING_MAX", 10)
    count = 15
    checks, users = PasswordChecks(0), Counted({f"u{n}": HASH for n in range(count)})
    replies = await asyncio.gather(
        *(checked(checks, users, "right", f"192.0.2.{n}", f"u{n}") for n in range(count))
    )
    assert sorted(replies) == [""] * 10 + [BUSY] * 5
    same = Counted({"u": HASH})
    replies = await asyncio.gather(
        *(checked(checks, same, "right", f"198.51.100.{n}") for n in range(count))
    )
    assert (replies, same.computed) == ([""] * count, 1)
    checks.close()


async def test_guesses_count_while_they_are_under_way() -> None:
    """Of one network as many as may be wrong, whatever comes at once."""
    checks, users = PasswordChecks(0), Counted({"u": HASH})
    replies = await asyncio.gather(*(checked(checks, users, f"wrong{n}") for n in range(50)))
    assert (replies.count(WRONG), users.computed) == (FAILURES_MAX, FAILURES_MAX)
    assert replies.count(BLOCKED) == 50 - FAILURES_MAX
    checks.close()


def test_an_unknown_name_costs_what_a_known_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash that is computed for it is one of the file, always the same."""
    from zonemta_py.intake import users

    seen: list[str] = []
    monkeypatch.setattr(users, "_matches", lambda hashed, password: bool(seen.append(hashed)))
    hashes = {"a": "$scrypt$ln=4,r=8,p=1$YQ$YQ", "b": "$argon2id$b", "c": "$argon2id$c"}
    found = Users(hashes)
    for _ in range(3):
        assert not found.verify("unknown", "x")
    assert len(set(seen)) == 1
    assert seen[0] in hashes.values()


def plain(text: str) -> str:
    return "AUTH PLAIN " + base64.b64encode(text.encode()).decode()


async def guessing(relay: ListenerUnderTest, line: str) -> str:
    async with await RawClient.connect(relay.address.port) as client:
        await client.ehlo()
        return await client.command(line)


async def test_over_smtp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another identity is refused; wrong ones are logged and recorded with the name; then 421 to strangers."""
    monkeypatch.setattr(authentication, "FAILURE_DELAY_S", 0.0)
    (tmp_path / "users").write_text(f"u:{HASH}\n")
    listener = "    auth: {users_file: users, require_tls: false}\n    trusted_networks: []"
    async with listening(tmp_path, listener) as relay:
        assert (await guessing(relay, plain("\0u\0right"))).startswith("235")
        assert (await guessing(relay, plain("u\0u\0right"))).startswith("235")
        assert (await guessing(relay, plain("root\0u\0right"))).startswith("535")
        for number in range(FAILURES_MAX - 1):
            assert (await guessing(relay, plain(f"\0admin\0{number}"))).startswith("535")
        assert (await guessing(relay, plain("\0v\0right"))).startswith("421 4.7.0")
        assert (await guessing(relay, plain("\0u\0right"))).startswith("235")
        await until(lambda: len(events(relay.queue.store)) == FAILURES_MAX + 1, "the events")
        tried = [(e["user"], e["client_ip"], e["command"]) for e in events(relay.queue.store)]
        assert tried[0] == ("u", "127.0.0.1", "AUTH")
        assert tried[1] == ("admin", "127.0.0.1", "AUTH")
    assert "authentication failed: user='admin' client=127.0.0.1" in caplog.text
