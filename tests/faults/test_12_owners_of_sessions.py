"""12. Sessions and password checks have owners: neither strangers nor one user, tenant or address lock out the others."""

import asyncio
import base64
import hashlib
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from argon2.exceptions import VerificationError

from tests.kit.deadlines import eventually, until
from tests.kit.listener import listening
from tests.kit.proxy import proxy_header
from tests.kit.relay import relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.config.tenants import ClientLimits, IntakeLimits, LimitRules
from zonemta_py.core import clock
from zonemta_py.intake import users as authentication
from zonemta_py.intake import users as users_module
from zonemta_py.intake.context import (
    STRESS_S,
    TOO_MANY,
    TOO_MANY_OF_ADDRESS,
    TOO_MANY_OF_OWNER,
    Owners,
    SessionLimits,
    Stranger,
)
from zonemta_py.intake.users import (
    BLOCKED,
    BUSY,
    STILL_WRONG,
    WRONG,
    PasswordChecks,
    Users,
    hash_password,
)
from zonemta_py.queue.submitters import limits as logins
from zonemta_py.queue.submitters.limits import FAILURES_MAX, RecentLogins, WrongPasswords
from zonemta_py.relay.relay import Relay

PLACES = 40
CHEAP = "$scrypt$ln=1,r=8,p=1$YQ$"  # of no password that is tried: a hash that takes no time
ACME, BETA = ("tenant", "acme"), ("tenant", "beta")


class Place:
    """A session."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy

    def close_if_idle(self) -> None:
        pass

    def give_up(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Limits(SessionLimits):
    """Remembers who lost a place."""

    def __init__(self) -> None:
        self.ended: list[object] = []
        super().__init__(self.ended.append)

    def known(self, *owners: tuple[str, str], busy: bool = False) -> str:
        return self.admit_known(Place(busy=busy), owners, PLACES)

    def stranger(self, network: str, now_s: float = 0.0, *, familiar: bool = False) -> str:
        return self.admit_stranger(Place(), Stranger(network, familiar, now_s), PLACES)


def admitted(ask: Callable[[], str], tries: int = 2 * PLACES) -> int:
    return [ask() for _ in range(tries)].count("")


# ---- who has a place


@pytest.mark.parametrize(
    "owners", [(("user", "u"),), (("address", "192.0.2.1"),), (ACME, ("user", "u"))]
)
def test_one_owner_leaves_places(owners: Owners) -> None:
    """An eighth to the others, also while its sessions have transactions; more to those of its own tenant."""
    limits = Limits()
    most = 30 if len(owners) > 1 else 35
    assert admitted(lambda: limits.known(*owners, busy=True)) == most
    assert limits.known(*owners).startswith(TOO_MANY_OF_OWNER)
    assert limits.known(("user", "other")) == ""
    if len(owners) > 1:
        assert limits.known(ACME, ("user", "colleague")) == ""


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_several_owners_have_equal_shares(count: int) -> None:
    """And the next one has a place, whatever the order in which they come."""
    limits = Limits()
    taken = [0] * count
    for _ in range(PLACES):
        for number in range(count):
            taken[number] += not limits.known(("user", f"u{number}"), busy=True)
    assert max(taken) - min(taken) <= 1
    assert limits.known(("user", "next")) == ""


def test_an_idle_session_of_the_owner_with_most_makes_room() -> None:
    """One with a transaction does not, nor does one of an owner who has hardly more."""
    limits = Limits()
    while len(limits) < PLACES - 1:
        limits.known(("user", f"u{len(limits) % 20}"), busy=True)
    idle = Place()
    assert limits.admit_known(idle, (("user", "u0"),), PLACES) == ""
    assert limits.known(("user", "next")) == ""
    assert limits.ended == [idle]
    assert limits.known(("user", "another")) == TOO_MANY, "all others have transactions"


def test_strangers_hold_places_that_no_other_needs() -> None:
    """Four addresses take all that strangers may have; who must log in, or has done so lately, still comes in."""
    limits = Limits()
    for network in ("192.0.2.0", "192.0.2.1", "192.0.2.2", "192.0.2.3"):
        assert [limits.stranger(network) for _ in range(20)][-1] in (TOO_MANY_OF_ADDRESS, TOO_MANY)
    assert len(limits) == 35
    assert [limits.stranger(f"198.51.100.{number}") for number in range(20)] == [""] * 20
    assert limits.stranger("192.0.2.0", familiar=True) == ""
    assert [limits.known(("user", f"u{number}")) for number in range(PLACES)] == [""] * PLACES
    assert len(limits) == PLACES
    assert limits.stranger("198.51.100.99") == TOO_MANY


def test_time_is_short_when_places_are() -> None:
    """Of many addresses with a session each, those lose it that are there for ten seconds."""
    limits = Limits()
    assert admitted(lambda: limits.stranger(f"net{len(limits)}", 100.0)) == 35
    assert limits.stranger("late", 100.0 + STRESS_S - 0.1) == TOO_MANY
    assert limits.stranger("familiar", 100.1, familiar=True) == ""
    assert [limits.stranger(f"late{number}", 100.0 + STRESS_S) for number in range(34)] == [""] * 34
    assert limits.stranger("later", 100.0 + STRESS_S) == TOO_MANY
    assert len(limits.ended) == 35


def test_the_counts_are_those_of_the_sessions() -> None:
    """After any order of beginnings, logins and ends nothing is left."""
    limits, places = Limits(), [Place() for _ in range(300)]
    for number, place in enumerate(places):
        owners = ((ACME, BETA)[number % 2], ("user", f"u{number % 7}"))
        if number % 3:
            limits.admit_stranger(
                place, Stranger(f"n{number % 5}", number % 4 == 0, float(number)), PLACES
            )
            if number % 2:
                limits.know(place, owners, PLACES)
        else:
            limits.admit_known(place, owners, PLACES)
        if number > 50:
            limits.remove(places[number - 50])
        assert len(limits) <= PLACES
    for place in places:
        limits.remove(place)
    assert (len(limits), limits._owned, limits._by_network) == (0, {}, {})


# ---- in a relay


def auth(user: str, password: str = "secret") -> str:
    return "AUTH PLAIN " + base64.b64encode(f"\0{user}\0{password}".encode()).decode()


def with_users(directory: Path, **more: Any) -> dict[str, Any]:
    key = hashlib.scrypt(b"secret", salt=b"salt", n=1 << 4, r=8, p=1, dklen=32)
    hashed = f"$scrypt$ln=4,r=8,p=1$c2FsdA${base64.b64encode(key).decode().rstrip('=')}"
    (directory / "users").write_text("".join(f"{name}:{hashed}\n" for name in ("ann", "ben", "cat")))
    users = {"users_file": str(directory / "users"), "require_tls": False}
    return {"address": "127.0.0.1:0", "trusted_networks": [], "auth": users, **more}


TENANTS = {
    "acme": {"users": ["ann", "ben"], "domains": ["acme.example"]},
    "beta": {"users": ["cat"], "networks": ["127.0.9.0/24"], "domains": ["beta.example"]},
}


class Clients(AsyncExitStack):
    """Clients of one relay, which are closed at the end."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._port = relay.addresses[0].port

    async def connect(self, source: str) -> tuple[str, RawClient]:
        """The greeting, or what comes instead, and the client."""
        client = await self.open(source)
        return await client.reply(), client

    async def open(self, source: str) -> RawClient:
        """One that is not greeted yet."""
        client = await RawClient.connect(self._port, greeting=False, source=source)
        return await self.enter_async_context(client)

    async def login(self, user: str, source: str = "127.0.0.1") -> tuple[str, RawClient]:
        """The reply to AUTH, or that instead of the greeting."""
        reply, client = await self.connect(source)
        if reply.startswith("220"):
            await client.ehlo()
            reply = await client.command(auth(user))
        if not reply.startswith("235"):
            client.close()
        return reply, client

    async def logins(self, user: str, tries: int) -> list[RawClient]:
        """The sessions of those that were let in."""
        found = [await self.login(user) for _ in range(tries)]
        assert {reply[:3] for reply, _ in found} <= {"235", "421"}
        return [client for reply, client in found if reply.startswith("235")]


@pytest.mark.parametrize("receivers", [0, 2])
async def test_open_sessions_are_exact(directory: Path, receivers: int) -> None:
    """Of a user, a tenant and an address, in one process and in three; a process that ends gives its back."""
    tenants = {**TENANTS, "acme": {**TENANTS["acme"], "limits": {"open_sessions": 5}}}
    async with staged(directory) as stage:
        config = stage.config(
            listeners=[with_users(directory)], tenants=tenants,
            limits={"user": {"open_sessions": 3}, "address": {"open_sessions": 6}},
            processes={"receivers": receivers, "senders": 0},
        )  # fmt: skip
        async with relaying(config) as relay, Clients(relay) as clients:
            ann = await clients.logins("ann", 8)
            ben = await clients.logins("ben", 8)
            assert (len(ann), len(ben)) == (3, 2), "a user's three, and the tenant's five"
            assert (await clients.login("ann"))[0] == (
                "421 4.7.0 Tenant acme has 5 sessions open, try again later"
            )
            cat = await clients.logins("cat", 4)
            assert len(cat) == 3, "the six of the address are those of each tenant"
            trusted = [await clients.connect("127.0.9.1") for _ in range(7)]
            replies = [reply for reply, _ in trusted]
            assert [reply[:3] for reply in replies] == ["220"] * 6 + ["421"]
            assert replies[-1].startswith("421 4.7.0 Address 127.0.9.1 of tenant")
            for client in [*(client for _, client in trusted), ann.pop(), *ben, *cat]:
                client.close()
            await until(lambda: sum(relay.queue.limits._open.values()) == 6, "the ends of ten sessions")
            assert len(await clients.logins("ben", 8)) == 3
            if receivers:
                await _kill_receivers(relay)
            else:
                for client in ann:
                    client.close()

            async def one_more() -> bool:
                return bool(await clients.logins("ann", 1))

            await eventually(one_more, "a place for ann")


async def _kill_receivers(relay: Relay) -> None:
    assert relay._intake.receivers is not None
    before = relay._intake.receivers.pids
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    pool = relay._intake.receivers
    await until(lambda: len(set(pool.pids) - set(before)) == 2, "other receivers")
    assert relay.queue.limits._open == {}


@pytest.mark.parametrize("receivers", [0, 2])
async def test_one_user_leaves_room_for_the_others(directory: Path, receivers: int) -> None:
    """Without any configuration, whether its sessions do something or not."""
    async with staged(directory) as stage:
        config = stage.config(
            listeners=[with_users(directory, max_sessions=32)], tenants=TENANTS,
            processes={"receivers": receivers, "senders": 0},
        )  # fmt: skip
        async with relaying(config) as relay, Clients(relay) as clients:
            ann = await clients.logins("ann", 40)
            assert 20 <= len(ann) <= 28
            for client in ann:
                await client.command("MAIL FROM:<s@acme.example>")
            assert len(await clients.logins("ben", 1)) == 1, "a colleague"
            assert len(await clients.logins("cat", 1)) == 1, "another tenant"


@pytest.mark.parametrize("receivers", [0, 2])
async def test_a_proxy_takes_no_place_before_its_header(directory: Path, receivers: int) -> None:
    """Silent connections of it, and those of a stranger behind it, end no session of other strangers."""
    async with staged(directory) as stage:
        listener = with_users(directory, max_sessions=32, proxies=["127.0.8.0/24"])
        processes = {"receivers": receivers, "senders": 0}
        config = stage.config(listeners=[listener], tenants=TENANTS, processes=processes)
        async with relaying(config) as relay, Clients(relay) as clients:
            strangers = [await clients.connect(f"127.0.0.{2 + number // 3}") for number in range(12)]
            assert all(greeting.startswith("220") for greeting, _ in strangers)
            silent = [await clients.open("127.0.8.1") for _ in range(70)]
            for client in silent[-20:]:
                await client.send(proxy_header("203.0.113.9", 1))
            named = [await client.reply() for client in silent[-20:]]
            assert {reply[:3] for reply in named} <= {"220", "421"}
            assert [reply[:3] for reply in named].count("220") <= 8, "a quarter, as of any address"
            for _, client in strangers:
                assert (await client.command("NOOP")).startswith("250")
            ann = await clients.open("127.0.8.1")
            await ann.send(proxy_header("198.51.100.7", 1))
            assert (await ann.reply()).startswith("220")
            await ann.ehlo()
            assert (await ann.command(auth("ann"))).startswith("235")


@pytest.mark.parametrize("mode", ["plain", "implicit"])
async def test_silent_strangers_lock_out_no_one(tmp_path: Path, mode: str) -> None:
    """Four addresses hold what they can get; each of those who must log in gets in, on the first try."""
    listener = "    max_sessions: 24\n    trusted_networks: []\n    auth: {users_file: users, require_tls: false}"
    context = None
    if mode == "implicit":
        from tests.kit.listener import certificate

        cert, key, context = certificate(tmp_path)
        context.check_hostname = False
        listener += f"\n    tls: {{mode: implicit, certificate_file: {cert}, key_file: {key}}}"
    with_users(tmp_path)
    async with listening(tmp_path, listener) as relay:
        held = []
        for number in range(24):
            local = (f"127.0.0.{2 + number % 4}", 0)
            held.append(await asyncio.open_connection("127.0.0.1", relay.address.port, local_addr=local))
        await until(lambda: len(relay.listener.context.sessions) == 21, "the strangers")
        clients = []
        for number in range(12):
            local = (f"127.0.1.{number}", 0)
            streams = await asyncio.open_connection(
                "127.0.0.1", relay.address.port, local_addr=local, ssl=context
            )
            client = RawClient(*streams)
            assert (await client.reply()).startswith("220")
            await client.ehlo()
            assert (await client.command(auth("ann"))).startswith("235")
            clients.append(client)
        assert len(relay.listener.context.handshakes) <= 24
        for client in clients:
            client.close()
        for _, writer in held:
            writer.close()


# ---- password checks


class Slow(Users):
    """Passwords that are ``right`` for a user of this name only; every check takes a turn of the loop."""

    def __init__(self, *names: str) -> None:
        super().__init__(dict.fromkeys(names, CHEAP))
        self.computed = 0

    def verify(self, name: str, password: str) -> bool:
        self.computed += 1
        return bool(self.hash_of(name)) and password == "right"


async def asked(checks: PasswordChecks, users: Users, name: str, password: str, ip: str) -> str:
    result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    checks.check(users, name, password, ip, result.set_result)
    return await result


async def test_guessers_from_changing_addresses() -> None:
    """Sixty at a time, each from an address of its own: every right password is right, from a new address, too."""
    checks, users = PasswordChecks(0), Slow("u")
    numbers = iter(range(1_000_000))
    done = asyncio.Event()

    async def guess() -> None:
        while not done.is_set():
            number = next(numbers)
            ip = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            assert await asked(checks, users, "u", f"guess{number}", ip) == WRONG

    guessers = [asyncio.create_task(guess()) for _ in range(60)]
    await until(lambda: users.computed > 60, "guesses")
    for number in range(24):
        assert await asked(checks, users, "u", "right", f"192.0.2.{number}") == ""
        checks._remembered = authentication._Remembered()
        assert await asked(checks, users, "u", "right", f"192.0.2.{number}") == ""
    done.set()
    await asyncio.gather(*guessers)
    assert (checks._checks, +checks._guesses) == ({}, {})
    checks.close()


async def test_networks_have_turns_and_familiar_ones_come_first() -> None:
    """One with a hundred checks delays another by the one that is under way."""
    recent, order = RecentLogins(), list[str]()
    recent.learn("192.0.2.9", "u")
    checks = PasswordChecks(0, recent=recent)
    users = Slow("u", *(f"u{number}" for number in range(100)))

    async def noted(name: str, ip: str) -> None:
        assert await asked(checks, users, name, "right", ip) == ""
        order.append(ip)

    tasks = [noted(f"u{number}", "192.0.2.1") for number in range(100)]
    tasks += [noted("u", "192.0.2.2")]
    waiting = [asyncio.ensure_future(each) for each in tasks]
    await asyncio.sleep(0)
    users2 = Slow("v")
    await asyncio.gather(*waiting, _noted(checks, users2, "v", "192.0.2.9", order))
    assert order.index("192.0.2.2") <= 6
    assert order.index("192.0.2.9") <= 6
    checks.close()


async def _noted(checks: PasswordChecks, users: Users, name: str, ip: str, order: list[str]) -> None:
    assert await asked(checks, users, name, "right", ip) == ""
    order.append(ip)


async def test_wrong_passwords_behind_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lock out neither a remembered password, nor a user who has logged in there lately, nor guess for long."""
    wrong, recent = WrongPasswords(), RecentLogins()
    checks, users = PasswordChecks(0, wrong, recent), Slow("ann", "ben", "cat")
    nat = "192.0.2.1"
    for name in ("ann", "ben"):
        assert await asked(checks, users, name, "right", nat) == ""
    for number in range(FAILURES_MAX):
        assert await asked(checks, users, "x", f"guess{number}", nat) == WRONG
    assert await asked(checks, users, "cat", "right", nat) == BLOCKED
    assert await asked(checks, users, "x", "guess0", nat) == BLOCKED
    assert await asked(checks, users, "ann", "right", nat) == ""
    checks._remembered = authentication._Remembered()  # as after its time
    assert await asked(checks, users, "ann", "right", nat) == "", "has logged in there lately"
    for number in range(FAILURES_MAX):
        assert await asked(checks, users, "ben", f"guess{number}", nat) == WRONG
    checks._remembered = authentication._Remembered()
    assert await asked(checks, users, "ben", "right", nat) == BLOCKED, "ten guesses for one user"
    assert await asked(checks, users, "ann", "right", nat) == ""
    now_s = clock.monotonic_s()
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s + logins.FAILURE_WINDOW_S + 1)
    assert await asked(checks, users, "cat", "right", nat) == ""
    checks.close()


async def test_the_same_wrong_password_counts_once() -> None:
    """As of a program with an old password: it guesses nothing, and locks no one out."""
    wrong = WrongPasswords()
    checks, users = PasswordChecks(0, wrong), Slow("ann", "ben")
    assert await asked(checks, users, "ann", "old", "192.0.2.1") == WRONG
    for _ in range(3 * FAILURES_MAX):
        again = await asked(checks, users, "ann", "old", "198.51.100.1")
        assert again == WRONG, "a client learns nothing of others"
        assert again is STILL_WRONG
    assert (wrong.count("192.0.2.1"), wrong.count("198.51.100.1"), users.computed) == (1, 0, 1)
    assert await asked(checks, users, "ben", "right", "192.0.2.1") == ""
    checks.close()


async def test_a_wrong_password_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is sent."""
    checks, users = PasswordChecks(0), Slow("ann")
    began_s = clock.monotonic_s()
    assert await asked(checks, users, "ann", "old", "192.0.2.1") is WRONG
    for part, reply in ((0.6, STILL_WRONG), (1.1, WRONG)):
        now_s = began_s + part * authentication.REMEMBERED_S
        monkeypatch.setattr(clock, "monotonic_s", lambda now_s=now_s: now_s)
        assert await asked(checks, users, "ann", "old", "192.0.2.1") is reply
    checks.close()


@pytest.mark.parametrize("text", users_module.NOT_COMPUTED)
async def test_without_memory_nothing_is_known_of_a_password(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """It is not remembered as wrong, and does not count."""
    wrong = WrongPasswords()
    checks, users = PasswordChecks(0, wrong), Users({"ann": hash_password("right")})

    class Failing:
        def verify(self, hashed: str, password: str) -> bool:
            raise VerificationError(text)

    with monkeypatch.context() as patch:
        patch.setattr(users_module, "_argon2", Failing())
        assert await asked(checks, users, "ann", "right", "192.0.2.1") == BUSY
    assert await asked(checks, users, "ann", "right", "192.0.2.1") == ""
    assert wrong.count("192.0.2.1") == 0
    checks.close()


async def test_who_leaves_is_not_waited_for() -> None:
    """The check of a session that has ended is not made, unless another one waits for it."""
    checks, users = PasswordChecks(0), Slow(*(f"u{number}" for number in range(500)))
    withdraw = [
        checks.check(users, f"u{number}", "right", "192.0.2.1", lambda reply: None)
        for number in range(500)
    ]
    other: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    checks.check(users, "u499", "right", "192.0.2.2", other.set_result)
    for each in withdraw:
        each()
    assert await other == ""
    await until(lambda: not checks._checks, "the end")
    assert users.computed <= authentication.THREADS + 1
    assert not checks._strangers._waiting
    checks.close()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks and users of a day, the oldest are forgotten first; counts match."""
    monkeypatch.setattr(logins, "RECENT_MAX", 100)
    monkeypatch.setattr(logins, "NETWORKS_MAX", 100)
    reported: list[tuple[str, str]] = []
    recent, wrong = RecentLogins(lambda *login: reported.append(login)), WrongPasswords()
    for number in range(1000):
        recent.add(f"n{number // 3}", f"u{number}")
        recent.add(f"n{number // 3}", f"u{number}")
        wrong.add(f"n{number}")
    assert len(reported) == 1000, "a login that the others know is not reported again"
    assert len(recent.all()) == sum(recent._networks.values()) == 100
    assert (recent.is_familiar("n333"), recent.is_familiar("n1")) == (True, False)
    assert len(wrong._times) == 100
    now_s = clock.monotonic_s()
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s + logins.RECENT_S + 1)
    assert (recent.has("n333", "u999"), recent._networks) == (False, {})


def test_a_claim_is_returned_once() -> None:
    """Whenever it is closed, and under whichever rules."""
    from zonemta_py.queue.submitters.limits import IntakeLimiter, LimitedClient

    limiter = IntakeLimiter(None, None, lambda: 0)  # type: ignore[arg-type]  # no store is used
    rules = LimitRules(
        {"t": IntakeLimits(open_sessions=2)}, ClientLimits(user=IntakeLimits(open_sessions=1))
    )
    limiter._rules = rules
    assert rules.has_open_sessions
    client = LimitedClient("t", "u", "192.0.2.1")
    first, second = limiter.open_session(client), limiter.open_session(client)
    assert (first.refusal, second.refusal) == (
        "",
        "421 4.7.0 User u has 1 sessions open, try again later",
    )
    for each in (second, second, first, first):
        each.close()
    assert limiter._open == {}
