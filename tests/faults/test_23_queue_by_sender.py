"""23. ``queue list``, ``hold``, ``delete`` and ``bounce`` by the envelope's sender or its domain: commands and HTTP."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from tests.kit.queue import accept, opened
from tests.kit.relay import ONE_PROCESS, http_port, relaying, send, staged
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.requests import DeleteRequest, HoldRequest, ListRequest, Request
from zonemta_py.admin.tokens import Role, add_token
from zonemta_py.cli.main import main
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.queue import Queue

SENDERS = ("ann@acme.example", "bob@acme.example", "ann@other.example", "", "list-@acme.example-@[]")


async def rows(queue: Queue, request: Request) -> list[dict[str, Any]]:
    return [row async for row in run_operation(Operations(queue), request)]


@pytest.mark.parametrize(
    ("wanted", "senders"),
    [
        ({"sender": "ann@ACME.example"}, {"ann@acme.example"}),
        ({"sender": "<>"}, {""}),
        ({"sender": ""}, {""}),
        ({"sender": "list-@acme.example"}, {"list-@acme.example-@[]"}),
        ({"sender_domain": "Acme.Example"}, {"ann@acme.example", "bob@acme.example", "list-@acme.example-@[]"}),
        ({"sender_domain": "acme.example", "domain": "b.example"}, {"ann@acme.example", "bob@acme.example", "list-@acme.example-@[]"}),
        ({"sender_domain": "example"}, set()),
        ({"sender": "ann@acme.example", "sender_domain": "other.example"}, set()),
    ],
)  # fmt: skip
async def test_what_is_selected(directory: Path, wanted: dict[str, Any], senders: set[str]) -> None:
    async with opened(directory, store="memory") as queue:
        for sender in SENDERS:
            await accept(queue, "x@a.example", "y@b.example", sender=sender)
        found = await rows(queue, ListRequest(**wanted))
        assert {row["sender"] for row in found} == senders
        count = len(senders) * (1 if "domain" in wanted else 2)
        assert len(found) == count
        counted = await rows(queue, DeleteRequest(**wanted, dry_run=True))
        assert sum(row["matched"] for row in counted) == count
        assert sum(row["held"] for row in await rows(queue, HoldRequest(**wanted))) == count
        assert sum(row["deleted"] for row in await rows(queue, DeleteRequest(**wanted))) == count
        assert len(await rows(queue, ListRequest())) == 2 * len(SENDERS) - count


@pytest.mark.parametrize("wanted", [{"sender": "ann"}, {"sender_domain": "a..b"}])
async def test_what_is_no_sender(directory: Path, wanted: dict[str, Any]) -> None:
    async with opened(directory, store="memory") as queue:
        for request in (ListRequest(**wanted), HoldRequest(**wanted)):
            with pytest.raises(LocalError, match=f"^{next(iter(wanted))}: "):
                await rows(queue, request)


@pytest.mark.parametrize("name", ["list", "hold", "delete", "bounce"])
@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [("--sender-domain", "a..b", "malformed domain"), ("--sender", "ann", "an address is local@domain")],
)
def test_the_error_names_the_option(
    directory: Path, name: str, option: str, value: str, problem: str
) -> None:
    (directory / "zonemta.yaml").write_text("{}\n")
    line = ["queue", name, "-c", str(directory / "zonemta.yaml"), option, value]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': '{value}': {problem}" in result.output


async def test_commands_and_http(directory: Path) -> None:
    """On a running relay."""
    token = add_token(directory / "tokens", "ops", Role.OPERATE)
    async with staged(directory) as stage:
        config = stage.config(
            admin={"address": "127.0.0.1:0", "tokens_file": "tokens"}, processes=ONE_PROCESS
        )
        async with relaying(config) as relay:
            later = f"{clock.utc(clock.now_ms() + 86_400_000):%Y-%m-%dT%H:%M:%SZ}"
            message = f"X-Not-Before: {later}\r\n\r\nhello\r\n".encode()
            for sender in ("ann@acme.example", "bob@acme.example", "eve@other.example"):
                await send(relay, ["x@slow.example"], message, sender)
            run = command(directory)
            listed = await run("list", "--sender", "ann@acme.example")
            assert listed.output.count("x@slow.example") == 1
            counted = await run("hold", "--sender-domain", "acme.example", "--dry-run")
            assert "2 recipients selected" in counted.output
            held = await run("hold", "--sender-domain", "acme.example")
            assert "2 recipients held" in held.output
            deleted = await run("delete", "--sender", "bob@acme.example", "--yes")
            assert "1 recipient deleted" in deleted.output
            bounced = await run("bounce", "--sender", "ann@acme.example", "--yes")
            assert "1 recipient bounced" in bounced.output
            async with aiohttp.ClientSession(
                f"http://127.0.0.1:{http_port(relay)}", headers={"Authorization": f"Bearer {token}"}
            ) as client:
                query = {"sender_domain": "other.example"}
                async with client.get("/api/v1/list", params=query) as answer:
                    assert len((await answer.json())["rows"]) == 1
                asked = {"sender": "eve@other.example", "dry_run": True}
                async with client.post("/api/v1/delete", json=asked) as answer:
                    assert (await answer.json())["rows"] == [{"matched": 1}]


def command(directory: Path) -> Callable[..., Any]:
    async def run(name: str, *arguments: str) -> Result:
        line = ["queue", name, "-c", str(directory / "zonemta.yaml"), *arguments]
        result = await asyncio.to_thread(CliRunner().invoke, main, line)
        assert result.exit_code == 0, result.output
        return result

    return run
