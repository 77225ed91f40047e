"""Responses of the page: templates, files, redirects, and the fields of forms."""

import asyncio
import hashlib
from importlib.resources import files
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from zonemta_py.admin.http_server import host_and_port
from zonemta_py.core import clock
from zonemta_py.core.model import ALL_PROVIDERS, STATES
from zonemta_py.core.text import ago, on_page, time_left

FORM_MAX = 16_384
FORM_S = 30.0
MINUTES = (30, 120, 360)  # of the charts
STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "uplot.js": "text/javascript",
    "uplot.css": "text/css",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_environment(hostname: str) -> Environment:
    """The templates, with what they use."""
    environment = Environment(
        loader=PackageLoader("zonemta_py.admin.page"),
        autoescape=True,
        finalize=on_page,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": ago,
        "left": time_left,
        "provider": lambda name: "all providers" if name == ALL_PROVIDERS else name,
        "under": lambda ms: (
            f"< {ago(ms)}" if ms else "\N{EN DASH}"
        ),  # the time is that of a slot of the census
        "time": lambda ms: f"{clock.utc(ms):%Y-%m-%d %H:%M:%S}" if ms else "",
        "number": lambda value: f"{value:,}",
        "rate": lambda value: f"{value:,.0f}" if value >= 100 else f"{value:,.1f}",
        "words": lambda text: text.replace("_", " "),
        "segment": lambda text: quote(text, safe=""),
    }
    environment.globals |= {"hostname": hostname, "STATES": STATES, "MINUTES": MINUTES}
    return environment


def read_static(name: str) -> tuple[bytes, str]:
    """A file of ``static`` and its tag."""
    body = (files("zonemta_py.admin.page") / "static" / name).read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:16]}"'


def html_page(text: str, status: int = 200) -> web.Response:
    """A page."""
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def redirect(path: str) -> web.Response:
    """A response that leads the browser to another page."""
    return web.Response(status=303, headers={**HEADERS, "Location": path})


def local_path(text: str) -> str:
    """``text`` if it is a path of this page, else its start."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local else "/"


async def form_fields(request: web.Request) -> dict[str, str]:
    """The fields of a form, each once. Raises HTTPException when it is too large, or no form."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType
    length = request.content_length
    if length is None or length > FORM_MAX:
        raise web.HTTPRequestEntityTooLarge(FORM_MAX, length or 0)
    try:
        async with asyncio.timeout(FORM_S):
            fields = await request.post()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except (ValueError, LookupError):
        raise web.HTTPBadRequest from None
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def cookie_name(request: web.Request) -> str:
    """Browsers send a cookie to all ports of a host: another relay there has another name."""
    port = host_and_port(request.host)[1] or ("443" if request.secure else "80")
    return f"zonemta_{port}"


def begin_session(request: web.Request, key: str, path: str) -> web.Response:
    """Give the session with this key to the client."""
    response = redirect(path)
    response.set_cookie(
        cookie_name(request),
        key,
        httponly=True,
        samesite="Lax",
        secure=request.secure,
        path="/",
    )
    return response
