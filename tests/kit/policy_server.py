"""A web server with MTA-STS policies, and an authority whose certificates it and mail hosts have."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from zonemta_py.delivery import sts_policies
from zonemta_py.processes.senders import SenderChild
from zonemta_py.sink.nameserver import NameServer

PATH = "/.well-known/mta-sts.txt"


class PolicyServer:
    """``texts`` by host; ``asked`` counts requests. ``status``, ``kind``, ``hangs``: of every response."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.ca_file = directory / "policy-ca.pem"
        self.authority.cert_pem.write_to_path(self.ca_file)
        self.texts: dict[str, str] = {}
        self.asked: list[str] = []
        self.status, self.kind = 200, "text/plain"
        self.hangs: asyncio.Event | None = None
        self.port = 0

    def context(self, *names: str) -> ssl.SSLContext:
        """For a server with a certificate for ``names``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(*names).configure_cert(context)
        return context

    def publish(self, names: NameServer, domain: str, text: str) -> None:
        """Serve ``text`` as the policy of ``domain``, which has the records for it."""
        self.texts[f"mta-sts.{domain}"] = text
        names.records = {
            **names.records,
            f"_mta-sts.{domain}": {"TXT": ['"v=STSv1; id=1;"']},
            f"mta-sts.{domain}": {"A": ["127.0.0.1"]},
        }

    async def answer(self, request: web.Request) -> web.Response:
        host = request.host.partition(":")[0]
        self.asked.append(host)
        if self.hangs is not None:
            await self.hangs.wait()
        if host not in self.texts:
            raise web.HTTPNotFound
        headers = {"Location": PATH} if self.status in (301, 302) else {}
        return web.Response(
            text=self.texts[host], status=self.status, content_type=self.kind, headers=headers
        )


def policy(mode: str, *hosts: str, max_age_s: int = 86400) -> str:
    lines = ["version: STSv1", f"mode: {mode}", *(f"mx: {host}" for host in hosts)]
    return "\r\n".join([*lines, f"max_age: {max_age_s}", ""])


@asynccontextmanager
async def policies_served(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *names: str
) -> AsyncIterator[PolicyServer]:
    """A server at 127.0.0.1 with a certificate for ``names``; the port of HTTPS is its port, in sender processes too."""
    made = PolicyServer(directory)
    app = web.Application()
    app.router.add_get(PATH, made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=made.context(*names))
    await site.start()
    made.port = runner.addresses[0][1]
    monkeypatch.setattr(sts_policies, "HTTPS_PORT", made.port)
    monkeypatch.setattr(SenderChild, "module", "tests.kit.policy_sender")
    monkeypatch.setenv("HTTPS_PORT", str(made.port))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    try:
        yield made
    finally:
        await runner.cleanup()
