"""The HTTP server of a relay without the relay: the endpoint for mail, at a loopback address."""

from collections.abc import Callable

from aiohttp import web

from zonemta_py.admin.http_server import HttpRoute, HttpServer
from zonemta_py.admin.tokens import Role, Token, Tokens, digest_of
from zonemta_py.config.endpoints import AdminAddress
from zonemta_py.config.schema import Admin
from zonemta_py.intake.http import NO_TOKEN, PATH, MailEndpoint
from zonemta_py.intake.inject import Injector


def mail_server(
    new_injector: Callable[[], Injector], *, port: int = 0, token: str = "secret", tenant: str = ""
) -> HttpServer:
    """A server that accepts mail with ``token``."""
    endpoint = MailEndpoint(new_injector, where="127.0.0.1:0", message_timeout_s=60)

    async def post(request: web.Request, found: Token | None) -> web.StreamResponse:
        who = (found.tenant, found.name) if found is not None else ("", "")
        return await endpoint.post(request, *who)

    settings = Admin(address=(AdminAddress("127.0.0.1", port),))
    route = HttpRoute("POST", PATH, post, Role.SEND, refusal=NO_TOKEN)
    tokens = Tokens([Token("test", Role.SEND, digest_of(token), tenant)])
    return HttpServer(settings, [route], tokens, "relay.example")
