"""The page: views, and forms that execute operations. What a form does, a command and the API do too.

A view is rendered by one template, for a request and each second for those who watch: server-sent events carry the
part that changes, and the script of the page puts it in place. All values are escaped by Jinja2; the content security policy
allows no script and no style but the files of ``static``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from zonemta_py.admin.connections import Shares, owner_of
from zonemta_py.admin.http_server import HttpRoute
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.page.logins import Logins, PageSession
from zonemta_py.admin.page.responses import (
    HEADERS,
    MINUTES,
    STATIC,
    begin_session,
    cookie_name,
    form_fields,
    html_page,
    local_path,
    make_environment,
    read_static,
    redirect,
)
from zonemta_py.admin.page.views import Charts, Context, Views
from zonemta_py.admin.registry import OPERATIONS, restrict, run_operation
from zonemta_py.admin.tokens import Role, Token, Tokens
from zonemta_py.core import clock
from zonemta_py.core.codec import from_query, to_json
from zonemta_py.core.errors import LocalError, NotFound, UnknownName

log = logging.getLogger(__name__)


# ---- Who looks at the page: the session of a request, and how one begins and ends, by a link, a token or a form.

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
        """True if a session is open, and its token was not removed since."""
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


# ---- page

LIVE_EVERY_S = 1.0
WATCHERS_MAX = 20
WATCHERS_KEPT = 5  # of these, for operators
WRITE_S = 10.0
SHARED_S = 0.9  # less than LIVE_EVERY_S
SHARED_MAX = 100
TEXT_MAX = 1000  # of a search


Viewed = Callable[[web.Request, Token], Awaitable[Context]]


class PageView(NamedTuple):
    """A page: its template, what it shows, whether it changes each second, whether a tenant may see it."""

    template: str
    context: Viewed
    is_live: bool = False
    for_tenants: bool = False


class Page:
    """Serves the page. ``tokens``: those of the listener, now; ``hostname``: the relay's."""

    def __init__(
        self, operations: Operations, charts: Charts, tokens: Callable[[], Tokens], hostname: str
    ) -> None:
        self._operations = operations
        self._charts = charts
        self._watchers = Shares(WATCHERS_MAX, WATCHERS_KEPT)
        self._shared: dict[str, tuple[float, Context]] = {}  # by path, and when
        self._closing = asyncio.Event()
        self._environment = make_environment(hostname)
        self._sessions = PageSessions(tokens, self._environment.get_template("login.html").render)
        self._files = {name: read_static(name) for name in STATIC}
        views = Views(operations)
        self._views = {
            "/": PageView("overview.html", lambda request, token: views.overview(), is_live=True),
            "/zones/{zone}": PageView(
                "zone.html", lambda request, token: views.zone(request.match_info["zone"]), is_live=True
            ),
            "/tenants": PageView("tenants.html", lambda request, token: views.tenants(), is_live=True),
            "/tenants/{tenant}": PageView(
                "tenant.html",
                lambda request, token: views.tenant(request.match_info["tenant"], token.tenant),
                for_tenants=True,
            ),
            "/holds": PageView("holds.html", lambda request, token: views.holds(), is_live=True),
            "/providers": PageView(
                "providers.html", lambda request, token: views.providers(), is_live=True
            ),
            "/providers/{provider:[^/]+}": PageView(
                "providers.html",
                lambda request, token: views.providers(request.match_info["provider"]),
                is_live=True,
            ),
            "/search": PageView(
                "search.html",
                lambda request, token: views.search(
                    request.query.get("q", "").strip()[:TEXT_MAX], token.tenant
                ),
                for_tenants=True,
            ),
            "/messages/{message}": PageView(
                "message.html",
                lambda request, token: views.message(request.match_info["message"], token.tenant),
                for_tenants=True,
            ),
        }

    def routes(self) -> list[HttpRoute]:
        """All routes of the page."""
        routes = [
            self._route("GET", path, self._view_handler(view)) for path, view in self._views.items()
        ]
        return [
            *routes,
            self._route("GET", "/static/{name}", self._static),
            self._route("GET", "/series", self._series),
            *(self._route(*each) for each in self._sessions.routes()),
            self._route("POST", "/do/{operation}", self._do),
        ]

    def _route(
        self, method: str, path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> HttpRoute:
        async def handle(request: web.Request, token: Token | None) -> web.StreamResponse:
            return await handler(request)

        return HttpRoute(method, path, handle, Role.READ, is_open=True, token_of=self._sessions.token_of)

    def new_link(self) -> str:
        """A code that opens one session (``Logins``)."""
        return self._sessions.logins.new_link()

    def close(self) -> None:
        """End the streams: the relay stops."""
        self._closing.set()

    # ---- views

    def _view_handler(self, view: PageView) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = self._sessions.find(request)
            if session is None:
                return to_login(request)
            if session.token.tenant and not view.for_tenants:
                return redirect("/search")
            if "text/event-stream" in request.headers.get("Accept", ""):
                return await self._live(request, view, session)
            text, status = await self._rendered(request, view, session, "base.html")
            return html_page(text, status)

        return handle

    async def _rendered(
        self, request: web.Request, view: PageView, session: PageSession, layout: str
    ) -> tuple[str, int]:
        """The text, and the status of the response."""
        template, status = view.template, 200
        try:
            context = await self._context(request, view, session)
        except (NotFound, UnknownName) as exc:
            template, context, status = (
                "message_only.html",
                {"title": "Not found", "text": str(exc)},
                404,
            )
        except PermissionError as exc:
            template, context, status = (
                "message_only.html",
                {"title": "Not allowed", "text": str(exc)},
                403,
            )
        except LocalError as exc:
            template, context, status = (
                "message_only.html",
                {"title": "Not possible", "text": str(exc)},
                409,
            )
        if layout == "base.html":
            context["notice"], session.notice = session.notice, ""
        text = self._environment.get_template(template).render(
            layout=layout,
            session=session,
            may_change=session.token.allows(Role.OPERATE),
            path=request.path_qs,
            section="/" + request.path.split("/")[1],
            is_live=view.is_live,
            now_ms=clock.now_ms(),
            **context,
        )
        return text, status

    async def _context(self, request: web.Request, view: PageView, session: PageSession) -> Context:
        """The context of a view; those who watch the same live page share it."""
        if not view.is_live:
            return await view.context(request, session.token)
        now_s, (made_s, shared) = clock.monotonic_s(), self._shared.get(request.path, (0.0, {}))
        if not shared or now_s - made_s >= SHARED_S:
            shared = await view.context(request, session.token)
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[request.path] = clock.monotonic_s(), shared
        return dict(shared)

    async def _live(
        self, request: web.Request, view: PageView, session: PageSession
    ) -> web.StreamResponse:
        """The main part of a view, whenever it has changed, once a second at most."""
        owner = owner_of(session.token, None)
        if not view.is_live or not self._watchers.take(owner):
            return web.Response(status=204)  # it makes a browser stop asking
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            async with asyncio.timeout(None) as patience:  # for a client that does not read
                await self._send_changes(request, response, view, session, patience)
        except (TimeoutError, ConnectionError):
            pass
        except Exception:
            log.exception("a live page has ended")
        finally:
            self._watchers.give_back(owner)
        return response

    async def _send_changes(
        self,
        request: web.Request,
        response: web.StreamResponse,
        view: PageView,
        session: PageSession,
        patience: asyncio.Timeout,
    ) -> None:
        """Until the client has gone, the session ends, or the relay stops."""
        before, loop = "", asyncio.get_running_loop()
        while not self._closing.is_set() and self._sessions.is_valid(session):
            text, _ = await self._rendered(request, view, session, "main.html")
            sent, before = text if text != before else "", text
            patience.reschedule(loop.time() + WRITE_S)
            await response.write(b"data: " + to_json(sent) + b"\n\n")
            patience.reschedule(None)
            if request.transport is None or request.transport.is_closing():
                break
            try:
                await asyncio.wait_for(self._closing.wait(), LIVE_EVERY_S)
            except TimeoutError:
                continue

    async def _series(self, request: web.Request) -> web.StreamResponse:
        """The columns of a chart."""
        session = self._sessions.find(request)
        if session is None or session.token.tenant:
            return web.Response(status=403, headers=HEADERS)
        minutes = request.query.get("minutes", "")
        if minutes not in map(str, MINUTES):
            return web.Response(status=400, text=f"minutes: expected one of {MINUTES}", headers=HEADERS)
        columns = self._charts.series(request.query.get("zone", ""), int(minutes))
        return web.Response(body=to_json(columns), content_type="application/json", headers=HEADERS)

    async def _static(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in STATIC:
            return web.Response(status=404)
        body, tag = self._files[name]
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=STATIC[name], charset="utf-8", headers=headers)

    # ---- forms

    async def _do(self, request: web.Request) -> web.StreamResponse:
        """Execute an operation that changes something, and return to the page of the form."""
        session, fields = self._sessions.find(request), await form_fields(request)
        if session is None:
            return redirect("/login")
        if not session.is_own_form(fields.pop("csrf", "")):
            return html_page("The form is not of this session. Load the page again.", 403)
        back = local_path(fields.pop("back", "/"))
        operation = OPERATIONS.get(request.match_info["operation"])
        if operation is None or not operation.changes or operation.name == "login":
            return html_page("There is no such operation.", 404)
        if not session.token.allows(operation.permission):
            return html_page(f"The token '{session.token.name}' has the role {session.token.role}.", 403)
        try:
            given = {name: value for name, value in fields.items() if value}
            asked = restrict(
                self._operations, from_query(given, operation.request), session.token.tenant
            )
            last: Mapping[str, Any] = {}
            async for row in run_operation(self._operations, asked):
                last = row
            session.notice = f"{operation.name}: {_words(last)}"
            self._shared.clear()
        except (LocalError, ValueError, PermissionError) as exc:
            session.notice = f"{operation.name} failed: {exc}"
        return redirect(back)


def _words(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items()) or "done"
