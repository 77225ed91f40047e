"""Who is logged in at the page: links that work once, and sessions. All in memory: a restart ends them."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from zonemta_py.admin.tokens import Role, Token
from zonemta_py.core.clock import monotonic_s

LINK_VALID_S = 600.0
IDLE_S = 12 * 3600.0  # without a request a session ends
LINKS_MAX = 100
SESSIONS_MAX = 1000
BY_LINK = Token(
    "link", Role.ADMIN, ""
)  # whose session a link opens: the command that made it may do everything


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(slots=True)
class PageSession:
    """Someone who is logged in, as ``token``. ``csrf``: what their forms carry. ``notice``: for the next page."""

    token: Token
    seen_s: float
    key: str = field(default_factory=_secret)
    csrf: str = field(default_factory=_secret)
    notice: str = ""

    def is_own_form(self, csrf: str) -> bool:
        """True if a form was made for this session."""
        return secrets.compare_digest(self.csrf.encode(), csrf.encode("utf-8", "surrogateescape"))


class Logins:
    """Links and sessions, at most LINKS_MAX and SESSIONS_MAX: further ones replace the oldest."""

    def __init__(self, now_s: Callable[[], float] = monotonic_s) -> None:
        self._now_s = now_s
        self._links: dict[str, float] = {}  # until when, by code
        self._sessions: dict[str, PageSession] = {}  # the least recently used first

    def new_link(self) -> str:
        """A code that opens one session within LINK_VALID_S."""
        while len(self._links) >= LINKS_MAX:
            del self._links[next(iter(self._links))]
        code = _secret()
        self._links[code] = self._now_s() + LINK_VALID_S
        return code

    def redeem(self, code: str) -> PageSession | None:
        """The session that a link opens; None if it was used, or is too old."""
        until_s = self._links.pop(code, 0.0)
        return self.open(BY_LINK) if self._now_s() < until_s else None

    def open(self, token: Token) -> PageSession:
        """A new session."""
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        session = PageSession(token, self._now_s())
        self._sessions[session.key] = session
        return session

    def find(self, key: str) -> PageSession | None:
        """The session with this key, which its client has just used."""
        session = self._sessions.pop(key, None)
        now_s = self._now_s()
        if session is None or now_s - session.seen_s >= IDLE_S:
            return None
        session.seen_s = now_s
        self._sessions[key] = session
        return session

    def is_open(self, session: PageSession) -> bool:
        """True if a session was neither closed nor replaced, and is in use."""
        is_idle = self._now_s() - session.seen_s >= IDLE_S
        return self._sessions.get(session.key) is session and not is_idle

    def close(self, session: PageSession) -> None:
        """End a session: its cookie is not valid any more."""
        self._sessions.pop(session.key, None)
