"""Who looks at the page: the session of a request, and how one begins and ends, by a link, a token or a form."""

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from aiohttp import web

from zonemta_py.admin.page.logins import Logins, PageSession
from zonemta_py.admin.page.responses import (
    HEADERS,
    begin_session,
    cookie_name,
    form_fields,
    html_page,
    local_path,
    redirect,
)
from zonemta_py.admin.tokens import Role, Token, Tokens

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def to_login(request: web.Request) -> web.StreamResponse:
    """The answer to a request without a session."""
    if "text/event-stream" in request.headers.get("Accept", ""):  # a redirect would be followed
        return web.Response(status=401, headers=HEADERS)
    return redirect("/login?" + urlencode({"next": request.path_qs}))


class PageSessions:
    """The sessions of the page. ``tokens``: those of the listener, now; ``render_login``: the form, with ``error`` and ``then``."""

    def __init__(self, tokens: Callable[[], Tokens], render_login: Callable[..., str]) -> None:
        self._tokens = tokens
        self._render_login = render_login
        self.logins = Logins()

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        return [
            ("GET", "/login", self._login),
            ("POST", "/login", self._login_by_token),
            ("POST", "/logout", self._logout),
        ]

    def find(self, request: web.Request) -> PageSession | None:
        """The session that the cookie of a request names, if it is valid."""
        session = self.logins.find(request.cookies.get(cookie_name(request), ""))
        return session if session is not None and self.is_valid(session) else None

    def token_of(self, request: web.Request) -> Token | None:
        """The token of the session of a request."""
        session = self.find(request)
        return session.token if session is not None else None

    def is_valid(self, session: PageSession) -> bool:
        """Whether a session is open, and its token was not removed since."""
        is_known = not session.token.digest or session.token in self._tokens()
        return is_known and self.logins.is_open(session)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """The form, or with a code a session."""
        code, then = request.query.get("code"), local_path(request.query.get("next", "/"))
        if code is None:
            return self._form("", then)
        session = self.logins.redeem(code)
        if session is None:
            text = "This link was used, or is too old. `zonemta status` prints another."
            return self._form(text, then, 403)
        return begin_session(request, session.key, "/")

    async def _login_by_token(self, request: web.Request) -> web.StreamResponse:
        fields = await form_fields(request)
        then = local_path(fields.get("next", "/"))
        token = self._tokens().find(fields.get("token", "").strip())
        if token is None or not token.allows(Role.READ):
            text = (
                "This is no token of this relay." if token is None else "This token is not for looking."
            )
            return self._form(text, then, 403)
        return begin_session(request, self.logins.open(token).key, then)

    def _form(self, text: str, then: str, status: int = 200) -> web.Response:
        return html_page(self._render_login(error=text, then=then), status)

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        session, fields = self.find(request), await form_fields(request)
        if session is not None and session.is_own_form(fields.get("csrf", "")):
            self.logins.close(session)
        return redirect("/login")
