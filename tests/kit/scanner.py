"""A scanner that speaks rspamd's protocol, and says what the test wants."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from zonemta_py.bench.process import free_port


class ScriptedScanner:
    """Answers with ``answer``: a status, text, or JSON. ``requests`` has the fields and data of each."""

    def __init__(self) -> None:
        self.answer: int | str | Mapping[str, object] = {"action": "no action"}
        self.requests: list[tuple[list[tuple[str, str]], bytes]] = []
        self.begun = asyncio.Event()  # some data have come
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        data = b""
        async for part in request.content.iter_any():
            data += part
            self.begun.set()
        self.requests.append((list(request.headers.items()), data))
        await self.may_answer.wait()
        if isinstance(self.answer, int):
            return web.Response(status=self.answer)
        if isinstance(self.answer, str):
            return web.Response(text=self.answer)
        return web.json_response(self.answer)


@asynccontextmanager
async def scripted_scanner() -> AsyncIterator[ScriptedScanner]:
    made = ScriptedScanner()
    application = web.Application(client_max_size=1 << 30)
    application.router.add_post("/checkv2", made.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port("127.0.0.1")
    await web.TCPSite(runner, "127.0.0.1", port).start()
    made.url = f"http://127.0.0.1:{port}"
    try:
        yield made
    finally:
        made.may_answer.set()
        await runner.cleanup()
