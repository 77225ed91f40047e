"""Links that work once, and sessions that end."""

from zonemta_py.admin.page.logins import (
    BY_LINK,
    IDLE_S,
    LINK_VALID_S,
    LINKS_MAX,
    SESSIONS_MAX,
    Logins,
)
from zonemta_py.admin.tokens import Role, Token

TOKEN = Token("dashboard", Role.READ, "sha256:0")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_link_works_once_and_for_a_time() -> None:
    clock = Clock()
    logins = Logins(clock)
    code = logins.new_link()
    session = logins.redeem(code)
    assert session is not None
    assert session.token == BY_LINK
    assert logins.redeem(code) is None
    late = logins.new_link()
    clock.now_s += LINK_VALID_S
    assert logins.redeem(late) is None
    assert logins.redeem("") is None


def test_a_session_lives_as_long_as_it_is_used() -> None:
    clock = Clock()
    logins = Logins(clock)
    session = logins.open(TOKEN)
    for _ in range(3):
        clock.now_s += IDLE_S - 1
        assert logins.find(session.key) is session
    clock.now_s += IDLE_S
    assert logins.find(session.key) is None
    assert logins.find(session.key) is None
    other = logins.open(TOKEN)
    logins.close(other)
    assert logins.find(other.key) is None


def test_the_oldest_are_replaced() -> None:
    logins = Logins(Clock())
    codes = [logins.new_link() for _ in range(LINKS_MAX + 1)]
    assert logins.redeem(codes[0]) is None
    assert logins.redeem(codes[-1]) is not None
    sessions = [logins.open(TOKEN) for _ in range(SESSIONS_MAX)]
    first = sessions[1]
    assert logins.find(first.key) is first  # now it is not the oldest
    logins.open(TOKEN)
    logins.open(TOKEN)
    assert logins.find(sessions[2].key) is None
    assert logins.find(first.key) is first


def test_forms_are_of_one_session() -> None:
    logins = Logins(Clock())
    one, other = logins.open(TOKEN), logins.open(TOKEN)
    assert one.is_own_form(one.csrf)
    assert not one.is_own_form(other.csrf)
    assert not one.is_own_form("")
    assert not one.is_own_form("é\udc80")
