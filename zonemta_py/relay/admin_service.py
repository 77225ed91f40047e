"""The admin listener of a relay: health, metrics, mail by HTTP, and what they are read from.

States: not started ─▶ serving, or without a server (``server`` is None) ─ drain ─▶ stopping, not ready ─▶ closed.

Invariants:

- ``admin`` does not change while the relay runs (``parts.check_reloadable``); a reload reads the tokens again, and nothing else.
- A listener at the default address that cannot be opened does not stop the relay, unless it accepts mail: another relay on this machine
  may have the port. That is logged, and ``Relay.status`` has it from ``warnings``.
- The relay is ready for mail if ``reasons`` is empty. Each check (``_checks``) is a function that returns a reason, or nothing.
- aiohttp and what needs it are imported when a server starts: loading it takes a quarter of a second.
- The server is closed after the drain of all parts: until then ``/readyz`` says that the relay is stopping.

Callers: ``relay.relay`` makes the service and its ``part``; ``Relay.status`` asks for addresses, reasons and processes.

Example: with ``admin.page`` and ``admin.metrics`` the server has the routes of health, metrics and page; ``new_login`` returns
``{"urls": ["http://127.0.0.1:8025/login?code=…"], "valid_s": …}``, for a listener at 127.0.0.1:8025.
"""

import logging
import os
import resource
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from zonemta_py.admin.operation import Operations
from zonemta_py.admin.page.logins import LINK_VALID_S
from zonemta_py.admin.tokens import (
    MADE_NAME,
    Role,
    Token,
    Tokens,
    check_tokens,
    load_tokens,
    make_token,
)
from zonemta_py.config.endpoints import AdminAddress
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import LocalError
from zonemta_py.core.runtime import open_descriptors
from zonemta_py.core.version import __version__
from zonemta_py.delivery.egress_operator import path_rows, warmup_rows
from zonemta_py.events.observers import EventStream
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.queue import Queue
from zonemta_py.relay.delivery_service import DeliveryService
from zonemta_py.relay.intake_service import IntakeService
from zonemta_py.relay.parts import NewConfig, Part, Prepared
from zonemta_py.relay.preflight import RESERVE, needs_admin_address

if TYPE_CHECKING:
    from aiohttp import web

    from zonemta_py.admin.http_server import HttpRoute, HttpServer
    from zonemta_py.admin.metrics import LoopWatch
    from zonemta_py.admin.page.page import Page
    from zonemta_py.admin.page.views import Charts

BEHIND_S = 60.0  # of the event log

log = logging.getLogger(__name__)


class AdminSources(NamedTuple):
    """The parts of the relay that the listener tells about."""

    queue: Queue
    exporter: Exporter
    delivery: DeliveryService
    intake: IntakeService
    stream: EventStream


class AdminService:
    """The HTTP server of a relay, if ``admin.address`` names one.

    One at the default address that cannot be opened is logged, unless it accepts mail: another relay on this machine
    may have it; then ``warnings`` says so. ``server`` is None before the start, and without one.
    """

    def __init__(
        self, config: Config, hostname: str, operations: Operations, sources: AdminSources
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._operations = operations
        self._sources = sources
        self._stopping, self._grace_s = False, 0.0
        self._watch: LoopWatch | None = None
        self._page: Page | None = None
        self.charts: Charts | None = None
        self.server: HttpServer | None = None
        self.warnings: list[str] = []

    def part(self) -> Part:
        """Part of the relay: start, reload and stop. Its health says that it stops while it drains."""
        return Part("the HTTP listener", self._start, self._drain, self._close, self._prepare)

    async def _start(self) -> None:
        settings = self._config.admin
        if not settings.address:
            return
        # Imported where it is used: loading aiohttp takes a quarter of a second.
        from zonemta_py.admin.http_server import HttpServer
        from zonemta_py.admin.metrics import LoopWatch

        self._watch = LoopWatch()
        self._watch.start()
        try:
            tokens = self._tokens(self._config, make=True)
            server = HttpServer(settings, self._routes(), tokens, self._hostname)
            await server.start()
        except LocalError as exc:
            if needs_admin_address(settings):
                raise
            text = f"{exc}: the relay runs without health, metrics and API; admin.address: null says so"
            log.error("%s", text)
            self.warnings = [text]
            return
        self.server = server

    def _tokens(self, config: Config, *, make: bool = False) -> Tokens:
        """Read the tokens; with ``make`` make that of the queue's directory. Raises ConfigError, LocalError."""
        admin, made = config.admin, config.queue.directory / MADE_NAME
        if admin.tokens_file is not None or not config.queue.directory.is_dir():
            return check_tokens(config)
        if make:
            make_token(made)
        return load_tokens(None, admin.token_file, made)

    def _prepare(self, new: NewConfig) -> Prepared:
        """The tokens are read again. Raises ConfigError."""
        tokens = self._tokens(new.config) if self.server is not None else Tokens([])

        def apply() -> None:
            self._config = new.config
            if self.server is not None:
                self.server.tokens = tokens

        return Prepared(apply)

    def _routes(self) -> "list[HttpRoute]":
        from zonemta_py.admin.metrics import health_routes

        assert self._watch is not None
        admin = self._config.admin
        routes = health_routes(self._watch, self._checks())
        if admin.metrics:
            routes += self._metric_routes()
        if admin.api:
            from zonemta_py.admin.api import Api

            routes += Api(self._operations, __version__).routes()
        if admin.page:
            routes += self._page_routes()
        if admin.mail:
            routes.append(self._mail_route())
        return routes

    def _page_routes(self) -> "list[HttpRoute]":
        from zonemta_py.admin.page.page import Page
        from zonemta_py.admin.page.views import Charts

        def tokens() -> Tokens:
            return self.server.tokens if self.server is not None else Tokens([])

        self.charts = Charts(self._sources.queue)
        self.charts.start()
        self._page = Page(self._operations, self.charts, tokens, self._hostname)
        return self._page.routes()

    def addresses(self) -> list[str]:
        """The addresses at which it accepts; empty when it does not."""
        if self.server is None:
            return []
        places = zip(self._config.admin.address, self.server.ports, strict=True)
        return [str(each._replace(port=port)) for each, port in places]

    def new_login(self) -> dict[str, Any]:
        """``urls`` that open the page once within ``valid_s``. Raises LocalError when there is no page."""
        server, page = self.server, self._page
        if server is None or page is None:
            raise LocalError("the relay serves no page; see admin.address and admin.page")
        scheme = "https" if self._config.admin.tls.certificate_file is not None else "http"
        places = zip(self._config.admin.address, server.ports, strict=True)
        hosts = [(_host(each, self._hostname), port) for each, port in places if port]
        code = page.new_link()
        urls = [f"{scheme}://{host}:{port}/login?code={code}" for host, port in hosts]
        return {"urls": urls, "valid_s": int(LINK_VALID_S)}

    def _mail_route(self) -> "HttpRoute":
        from zonemta_py.admin.http_server import HttpRoute
        from zonemta_py.intake.http import NO_TOKEN, PATH

        endpoint = self._sources.intake.mail_endpoint()
        is_open = self._config.admin.mail_without_token

        async def post(request: "web.Request", token: Token | None) -> "web.StreamResponse":
            who = (token.tenant, token.name) if token is not None else ("", "")
            return await endpoint.post(request, *who)

        return HttpRoute("POST", PATH, post, Role.SEND, is_local=is_open, refusal=NO_TOKEN)

    def _metric_routes(self) -> "list[HttpRoute]":
        from zonemta_py.admin.metrics import MetricSources, metric_routes

        assert self._watch is not None
        settings = self._config.queue
        return metric_routes(
            MetricSources(
                version=__version__,
                queue=self._sources.queue,
                watch=self._watch,
                zones=self._sources.delivery.views,
                sessions_in=lambda: self._sources.intake.sessions,
                lag_s=lambda: self._sources.exporter.lag_s,
                pids=self._pids,
                directory=settings.directory,
                reserve_bytes=settings.min_free_disk,
                paths=partial(path_rows, self._sources.delivery.egress),
                warmups=partial(warmup_rows, self._sources.delivery.egress),
            )
        )

    def _pids(self) -> Mapping[str, list[int]]:
        receivers, senders = self._sources.intake.receivers, self._sources.delivery.senders
        return {
            "queue": [os.getpid()],
            "receiver": receivers.pids if receivers is not None else [],
            "sender": senders.pids if senders is not None else [],
        }

    # ---- health

    def _checks(self) -> list[Callable[[], str]]:
        return [
            self._stops, self._is_unwritable, self._lacks_space, self._lacks_descriptors, self._lacks_processes,
            self._scans, self._lags,
        ]  # fmt: skip

    def reasons(self) -> list[str]:
        """The reasons for which the relay is not ready for mail; empty when it is."""
        return [reason for check in self._checks() if (reason := check())]

    def processes(self) -> dict[str, list[int]]:
        """The process ids by role."""
        return dict(self._pids())

    def _stops(self) -> str:
        return "the relay is stopping" if self._stopping else ""

    def _is_unwritable(self) -> str:
        failure = self._sources.queue.failure
        return f"the queue cannot be written: {failure}" if failure is not None else ""

    def _lacks_space(self) -> str:
        try:
            self._sources.intake.disk_space.is_sufficient()
        except OSError as exc:
            return f"the free space is not known: {exc}"
        return self._sources.intake.disk_space.lack

    def _lacks_descriptors(self) -> str:
        most, used = resource.getrlimit(resource.RLIMIT_NOFILE)[0], open_descriptors() or 0
        if most - used < RESERVE // 4:
            return f"{used} of {most} file descriptors are in use"
        return ""

    def _lacks_processes(self) -> str:
        pools = (self._sources.intake.receivers, self._sources.delivery.senders)
        missing = [names for pool in pools if pool is not None and (names := pool.missing())]
        return f"processes that do not run: {', '.join(missing)}" if missing else ""

    def _scans(self) -> str:
        scanning = self._sources.queue.scanning
        return f"the mail of {scanning} zones is still being read" if scanning else ""

    def _lags(self) -> str:
        lag_s = self._sources.exporter.lag_s
        return f"the event log is {lag_s:.0f} s behind" if lag_s > BEHIND_S else ""

    async def _drain(self, grace_s: float) -> None:
        self._stopping, self._grace_s = True, grace_s
        self._sources.stream.close()
        if self._page is not None:
            self._page.close()

    async def _close(self) -> None:
        for each in (self._watch, self.charts):
            if each is not None:
                each.stop()
        if self.server is not None:
            await self.server.close(self._grace_s)


def _host(address: AdminAddress, hostname: str) -> str:
    """The name in an URL for ``address``, for a browser on this machine: ``hostname`` if it is any address."""
    if address.host in ("0.0.0.0", "::"):
        return hostname
    return f"[{address.host}]" if ":" in address.host else address.host
