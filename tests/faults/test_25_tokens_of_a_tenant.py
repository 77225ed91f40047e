"""25. A token of a tenant neither releases what the operator holds, nor sends with the null sender."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.queue import accept, events, opened, problems
from tests.kit.relay import http_port, relaying, staged
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import restrict, run_operation
from zonemta_py.admin.requests import (
    HoldRequest,
    MailRequest,
    ReleaseRequest,
    ResumeRequest,
    SuspendRequest,
    WhyRequest,
)
from zonemta_py.admin.tokens import Role, add_token
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.smtp.reply import encode_address

TENANTS = {"acme": "192.0.2.1/32", "globex": "127.0.0.1/32"}


async def done(queue: Queue, request: Any, tenant: str = "") -> int:
    """How many recipients an operation changes; ``tenant``: by a token of it. Raises PermissionError."""
    operations = Operations(queue)
    rows = [row async for row in run_operation(operations, restrict(operations, request, tenant))]
    return sum(row.get("held", 0) + row.get("released", 0) for row in rows)


@asynccontextmanager
async def queued(directory: Path) -> AsyncIterator[tuple[Queue, str]]:
    async with opened(directory, store="memory") as queue:
        yield queue, await accept(queue, "x@a.example", "y@b.example", tenant="acme")
        assert problems(queue.store) == []


@pytest.mark.parametrize("asked", [HoldRequest(tenant="acme"), None], ids=["selected", "named"])
async def test_the_hold_of_the_operator(directory: Path, asked: MailRequest | None) -> None:
    """A tenant's own hold is released by its token, an operator's by the operator only; who held is in the event."""
    async with queued(directory) as (queue, message):
        hold = asked or HoldRequest(message)
        assert await done(queue, hold, "acme") == 2
        assert await done(queue, ReleaseRequest(message), "acme") == 2
        assert await done(queue, hold) == 2
        with pytest.raises(PermissionError, match="the operator decides"):
            await done(queue, ReleaseRequest(message), "acme")
        assert await done(queue, hold, "acme") == 0, "it is held"
        with pytest.raises(PermissionError):
            await done(queue, ReleaseRequest(message), "acme")
        assert await done(queue, ReleaseRequest(message)) == 2
        held = [each["reason"] for each in events(queue.store) if each["event"] == "held"]
        assert held == ["tenant acme"] * 2 + ["an operator"] * 2


async def test_an_operator_holds_what_a_tenant_holds(directory: Path) -> None:
    """It is the operator's then; of a message that both hold in part, each token releases its own."""
    async with queued(directory) as (queue, message):
        assert await done(queue, HoldRequest(message), "acme") == 2
        operations = Operations(queue)
        (why,) = [
            row["why"] async for row in run_operation(operations, WhyRequest(message, "x@a.example"))
        ]
        assert why["reason"].startswith("tenant acme holds it")
        assert await done(queue, HoldRequest(message, "x@a.example")) == 1
        assert await done(queue, ReleaseRequest(message, by="acme"), "acme") == 1
        with pytest.raises(PermissionError):
            await done(queue, ReleaseRequest(message, "x@a.example", by=""), "acme")
        assert await done(queue, HoldRequest(message, "y@b.example"), "acme") == 1
        assert await done(queue, ReleaseRequest(message)) == 2, "the operator releases what anyone holds"


async def test_mail_of_a_suspended_tenant(directory: Path) -> None:
    """What its token holds meanwhile stays held when that ends, and its token releases it."""
    async with queued(directory) as (queue, message):
        await done(queue, SuspendRequest(campaign="c", tenant="acme"))
        (suspension,) = queue.suspended.parts()
        assert await Operator(queue).hold_for(suspension, message, None, "suspended") == 2
        with pytest.raises(PermissionError):
            await done(queue, ReleaseRequest(message), "acme")
        assert await done(queue, HoldRequest(message, "x@a.example"), "acme") == 1
        await done(queue, ResumeRequest(campaign="c", tenant="acme"))
        left = [event["recipient"] for event in events(queue.store) if event["event"] == "released"]
        assert left == ["y@b.example"]
        assert await done(queue, ReleaseRequest(message), "acme") == 1


async def test_after_a_start(directory: Path) -> None:
    async with opened(directory) as queue:
        message = await accept(queue, "x@a.example", tenant="acme")
        other = await accept(queue, "x@a.example", tenant="acme")
        await done(queue, HoldRequest(message))
        await done(queue, HoldRequest(other), "acme")
    async with opened(directory) as queue:
        with pytest.raises(PermissionError):
            await done(queue, ReleaseRequest(message), "acme")
        assert await done(queue, ReleaseRequest(other), "acme") == 1


@pytest.mark.parametrize("count", [0, 2], ids=["0/0", "2/2"])
async def test_the_null_sender(directory: Path, count: int) -> None:
    """Refused as over SMTP, except from the tenant's own hosts; a program of the relay, and the operator, may use it."""
    tokens = {
        name: add_token(directory / "tokens", name, Role.SEND, name if name in TENANTS else "")
        for name in (*TENANTS, "operator")
    }
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "tokens_file": "tokens"},
            processes={"receivers": count, "senders": count},
            tenants={
                name: {"domains": [f"{name}.example"], "networks": [network], "users": [name]}
                for name, network in TENANTS.items()
            },
        )  # fmt: skip
        async with relaying(config) as relay, aiohttp.ClientSession() as client:
            statuses, replies = {}, {}
            for name, token in tokens.items():
                own = name if name in TENANTS else "globex"
                headers = {
                    "Authorization": f"Bearer {token}", "Content-Type": "message/rfc822",
                    "X-Envelope-Sender": "", "X-Envelope-Recipient": encode_address("x@a.example"),
                }  # fmt: skip
                data = f"From: n@{own}.example\r\n\r\nreport\r\n".encode()
                url = f"http://127.0.0.1:{http_port(relay)}/mail"
                async with client.post(url, data=data, headers=headers) as answer:
                    statuses[name], replies[name] = answer.status, answer.headers["X-Smtp-Reply"]
            assert statuses == {"acme": 500, "globex": 204, "operator": 204}
            assert '553; message="5.7.1 127.0.0.1 may not send with the null sender"' in replies["acme"]
            assert await relay.enqueue(
                "", ["x@a.example"], b"From: n@acme.example\r\n\r\nx\r\n", user="acme"
            )
