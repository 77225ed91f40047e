"""Health, metrics and the API of a running relay, in one process and in several."""

import asyncio
import json
import logging
import smtplib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as metrics_of

from tests.kit.deadlines import scaled, until
from tests.kit.relay import Stage, empty, http_port, relaying, send, staged
from zonemta_py.admin import api
from zonemta_py.admin.tokens import Role, add_token
from zonemta_py.config.endpoints import AdminAddress
from zonemta_py.config.schema import Admin
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import OutcomeKind
from zonemta_py.relay import preflight
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

ADMIN = {"address": "127.0.0.1:0"}
DOCS = Path(__file__).parents[2] / "docs/metrics.md"


@asynccontextmanager
async def serving(stage: Stage, **changes: Any) -> AsyncIterator[tuple[Relay, aiohttp.ClientSession]]:
    """A relay with an admin listener, and a client with its token."""
    config = stage.config(**{"admin": ADMIN, **changes})
    async with relaying(config) as relay:
        token = (stage.directory / "queue" / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{http_port(relay)}"
        async with aiohttp.ClientSession(url, headers=headers) as client:
            yield relay, client


async def get(client: aiohttp.ClientSession, path: str, **query: str) -> tuple[int, Any]:
    async with client.get(path, params=query) as response:
        return response.status, await response.json()


async def post(client: aiohttp.ClientSession, path: str, body: object) -> tuple[int, Any]:
    async with client.post(path, json=body) as response:
        return response.status, await response.json()


Series = tuple[str, frozenset[str]]  # name and label values


async def samples(client: aiohttp.ClientSession) -> dict[Series, float]:
    """Every series with its value."""
    async with client.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        text = await response.text()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in metrics_of(text)
        for sample in family.samples
    }


async def test_metrics_tell_what_happened(directory: Path) -> None:
    """Accepted, refused, delivered, bounced and deferred mail, depths and sessions; in both formats."""
    async with staged(directory) as stage:
        later = Rule(Step.RCPT, recipient="later*", reply="451 4.7.1 later")
        no = Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no")
        await stage.receiver("a.example", later, no)
        await stage.receiver("sender.example")
        zone = {"retry": {"delays": ["1h"]}}
        async with serving(stage, zones={"default": zone}) as (relay, client):
            await send(relay, ["ok1@a.example", "ok2@a.example", "no1@a.example", "later1@a.example"])
            with pytest.raises(smtplib.SMTPDataError):
                await send(relay, ["ok@a.example"], b"Subject: x\r\n\r\na\0b\r\n")
            await until(
                lambda: relay.queue.traffic.outcomes.get(("default", OutcomeKind.BOUNCED, 5)) == 1,
                "the bounce",
            )
            await until(
                lambda: relay.queue.traffic.outcomes.get(("default", OutcomeKind.DEFERRED, 4)) == 1,
                "the delay",
            )
            await until(lambda: bool(relay.queue.traffic.rejected), "the refusal")
            found = await samples(client)
            assert found["zonemta_recipients_accepted_total", frozenset({"default"})] >= 4
            assert found["zonemta_outcomes_total", frozenset({"default", "delivered", "2"})] >= 2
            assert found["zonemta_queue_recipients", frozenset({"default", "deferred"})] == 1
            assert found["zonemta_destination_recipients", frozenset({"default", "a.example"})] == 1
            assert found["zonemta_rejected_total", frozenset({"DATA", "554"})] == 1
            assert found["zonemta_queue_writable", frozenset()] == 1
            assert found["zonemta_processes", frozenset({"queue"})] == 1
            assert (
                found["zonemta_processes", frozenset({"receiver"})] == relay.config.processes.receivers
            )
            assert found["zonemta_process_resident_bytes", frozenset({"queue"})] > 1 << 20
            for name in ("zone:default", "acme", "mail:campaign=june"):
                await relay.queue.suspended.suspend(name, "a test")
            found = await samples(client)
            for labels in ({"zone", "default"}, {"tenant", "acme"}, {"mail", "campaign june"}):
                assert found["zonemta_suspended_by_operator", frozenset(labels)] == 1
            assert found["zonemta_delivery_seconds_count", frozenset({"default"})] >= 2
            assert found["zonemta_sessions_opened_total", frozenset({"default"})] >= 1
            assert found["zonemta_write_seconds_count", frozenset()] >= 3
            accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
            async with client.get("/metrics", headers=accept) as response:
                text = await response.text()
            assert text.endswith("# EOF\n")
            families = open_metrics(text)  # type: ignore[no-untyped-call]  # it has no annotations
            assert {family.name for family in families} > {"zonemta_outcomes", "zonemta_info"}


async def test_every_metric_is_documented(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        async with serving(stage) as (relay, client):
            await send(relay, ["ok@a.example"])
            await empty(relay)
            async with client.get("/metrics") as response:
                families = list(metrics_of(await response.text()))
    page = DOCS.read_text()
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    assert [name for name in names if f"`{name}`" not in page] == []
    documented = {word.strip("`|") for word in page.split() if word.startswith("`zonemta_")}
    assert documented - names == set()


async def test_series_are_limited_whatever_the_mail(directory: Path) -> None:
    """500 domains in 60 zones."""
    async with staged(directory) as stage:
        zones = {f"z{number}": {"connections": 1} for number in range(60)}
        routing = [{"recipient_domain": f"*-{n}.example", "zone": f"z{n}"} for n in range(60)]
        async with serving(stage, zones=zones, routing=routing) as (relay, client):
            later = clock.utc(clock.now_ms() + 3_600_000).isoformat().encode()
            to = [f"u@d{number}-{number % 60}.example" for number in range(500)]
            await send(relay, to, b"X-Not-Before: " + later + b"\r\nSubject: x\r\n\r\nx\r\n")
            found = await samples(client)
            assert len(found) < 5000
            assert sum(name[0] == "zonemta_destination_recipients" for name in found) == 50
            assert found["zonemta_recipients_accepted_total", frozenset({"(other)"})] > 0


async def test_health(directory: Path) -> None:
    """Alive, ready, and why not: without a token."""
    async with staged(directory) as stage, serving(stage) as (relay, _):
        url = f"http://127.0.0.1:{http_port(relay)}"
        async with aiohttp.ClientSession(url) as stranger:
            assert await get(stranger, "/livez") == (200, {"live": True})
            assert await get(stranger, "/readyz") == (200, {"ready": True, "reasons": []})
            assert (await get(stranger, "/api/v1/summary"))[0] == 401
            assert await get(stranger, "/api/v1/sumary") == (
                404, {"error": "there is no /api/v1/sumary; /api/openapi.json has what there is"}
            )  # fmt: skip
            relay._intake.disk_space._min_bytes = 1 << 60
            relay._intake.disk_space._checked_s = -1e9
            status, body = await get(stranger, "/readyz")
            assert (status, body["reasons"]) == (503, ["less than queue.min_free_disk is free"])
            assert relay.admin is not None
            relay.admin._stopping = True
            _, body = await get(stranger, "/readyz")
            assert body["reasons"][0] == "the relay is stopping"
            assert relay.admin._watch is not None
            relay.admin._watch._ticked_s -= 11
            status, body = await get(stranger, "/livez")
            assert (status, body["live"]) == (503, False)


async def test_the_api(directory: Path) -> None:
    """The same operations as the commands; pages by cursor; errors with a status."""
    async with staged(directory) as stage:
        zone = {"transport": "dequeue"}
        async with serving(stage, zones={"default": zone}) as (relay, client):
            await send(relay, [f"u{number}@a.example" for number in range(5)])
            _, body = await get(client, "/api/v1/summary")
            assert body["rows"][0]["waiting"] == 5
            seen: list[str] = []
            after = ""
            while True:
                status, body = await get(client, "/api/v1/list", limit="2", after=after)
                assert status == 200
                seen += [row["recipient"] for row in body["rows"]]
                if len(body["rows"]) < 2:
                    break
                after = body["rows"][-1]["cursor"]
            assert seen == [f"u{number}@a.example" for number in range(5)]
            message = body["rows"][-1]["message"]
            status, body = await get(client, "/api/v1/why", message=message, recipient=seen[0])
            assert body["rows"][0]["why"]["name"] == "no_program"
            assert await post(client, "/api/v1/hold", {"message": message}) == (
                200, {"rows": [{"held": 5, "in_flight": 0}]}
            )  # fmt: skip
            async with client.get(
                "/api/v1/list", headers={"Accept": "application/x-ndjson"}
            ) as response:
                lines = (await response.text()).splitlines()
            assert [json.loads(line)["state"] for line in lines] == ["held"] * 5
            for method, path, arguments, wanted in (
                (get, "list", {"state": "held", "limit": "many"}, 400),
                (get, "list", {"colour": "blue"}, 400),
                (get, "list", {"after": "elsewhere"}, 409),
                (get, "show", {"message": "0" * 24}, 404),
                (get, "nothing", {}, 404),
                (get, "hold", {"message": message}, 405),
            ):
                status, _ = await method(client, f"/api/v1/{path}", **arguments) if path not in (
                    "nothing", "hold"
                ) else ((await client.get(f"/api/v1/{path}")).status, None)  # fmt: skip
                assert status == wanted, (path, arguments)
            assert (await post(client, "/api/v1/hold", {"message": 7}))[0] == 400
            assert (await post(client, "/api/v1/hold", [1]))[0] == 400
            assert (await post(client, "/api/v1/delete", {"message": message}))[0] == 200


async def test_tokens_of_a_file_and_of_tenants(directory: Path) -> None:
    """A tenant sees its own mail, and a reload reads the file again."""
    path = directory / "tokens"
    acme = add_token(path, "acme", Role.OPERATE, "acme")
    tenants = {"acme": {"networks": ["127.0.0.1/32"], "domains": ["acme.example"]}, "other": {"networks": ["192.0.2.0/24"], "domains": ["o.example"]}}  # fmt: skip
    async with staged(directory) as stage:
        config = stage.config(
            admin={**ADMIN, "tokens_file": "tokens"},
            tenants=tenants,
            zones={"default": {"transport": "dequeue"}},
        )
        async with relaying(config) as relay:
            url = f"http://127.0.0.1:{http_port(relay)}"
            assert not (directory / "queue/admin.token").exists()
            text = b"From: a@acme.example\r\nSubject: x\r\n\r\nx\r\n"
            await send(relay, ["a@x.example"], text, sender="a@acme.example")
            other = await relay.enqueue("b@o.example", ["b@x.example"], b"Subject: x\r\n\r\nx\r\n")
            reader = add_token(path, "reader", Role.READ)
            async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {acme}"}) as client:
                _, body = await get(client, "/api/v1/list", tenant="other")
                assert [row["recipient"] for row in body["rows"]] == ["a@x.example"]
                assert (await get(client, "/api/v1/show", message=other))[0] == 404
                assert (await post(client, "/api/v1/delete", {"message": other}))[0] == 404
                assert (await get(client, "/api/v1/summary"))[0] == 403
                assert (await post(client, "/api/v1/resume", {"tenant": "acme"}))[0] == 403
                assert (await post(client, "/api/v1/flush", {}))[0] == 403
                own = body["rows"][0]["message"]
                assert (await post(client, "/api/v1/hold", {"message": own}))[0] == 200
            async with aiohttp.ClientSession(
                url, headers={"Authorization": f"Bearer {reader}"}
            ) as client:
                assert (await get(client, "/api/v1/summary"))[0] == 401
                await relay.reload()
                assert (await get(client, "/api/v1/summary"))[0] == 200
                assert (await post(client, "/api/v1/flush", {}))[0] == 403
                assert (await post(client, "/api/v1/reload", {}))[0] == 403


async def test_a_default_port_that_is_in_use(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two relays on one machine: the second runs without the listener, unless it was named."""
    async with staged(directory) as stage, serving(stage) as (first, _):
        port = http_port(first)
        taken = {"address": f"127.0.0.1:{port}"}
        other = directory / "other"
        other.mkdir()
        async with staged(other) as second:
            with pytest.raises(LocalError, match=rf"admin\.address: 127\.0\.0\.1:{port}: "):
                async with relaying(second.config(admin=taken)):
                    pass
            default = Admin(address=(AdminAddress("127.0.0.1", port),))
            monkeypatch.setattr(preflight, "Admin", lambda: default)
            async with relaying(second.config(admin=taken)) as relay:
                assert relay.admin is not None
                assert relay.admin.server is None
                [warning] = [each for each in relay.status()["warnings"] if "without health" in each]
                assert warning.startswith(f"admin.address: 127.0.0.1:{port}: ")
            assert "the relay runs without health, metrics and API" in caplog.text


@pytest.fixture
def log_level_as_before() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.usefixtures("log_level_as_before")
async def test_the_description_of_the_api_is_true(directory: Path) -> None:
    """Schemathesis asks every operation as its description allows, and as it does not."""
    zones = {"default": {"transport": "dequeue"}}
    async with staged(directory) as stage, serving(stage, zones=zones) as (relay, client):
        await send(relay, ["a@x.example", "b@y.example"])
        url = f"http://127.0.0.1:{http_port(relay)}/api/openapi.json"
        header = f"Authorization: {client.headers['Authorization']}"
        arguments = ["--max-examples", "10", "--seed", "1", "--phases", "coverage,fuzzing"]
        for name in ("tail", "trace"):  # their answers have no end
            arguments += ["--exclude-operation-id", name]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", "run", url, "--header", header, *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=directory,
        )  # fmt: skip
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert "Tested: " in output.decode()
        assert relay.queue.failure is None


async def test_clients_that_watch_and_leave(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connections and tasks end, over HTTP and over the control socket, and no watch delays the end of the relay."""
    monkeypatch.setattr(api, "LOOK_S", 0.05)
    async with staged(directory) as stage, serving(stage) as (relay, client):
        assert relay.admin is not None
        stream = relay.admin._sources.stream
        headers = {"Accept": "application/x-ndjson"}
        for _ in range(5):
            async with client.get("/api/v1/tail?event=lost", headers=headers) as response:
                assert response.status == 200, "the head comes before the first event"
        await until(lambda: stream._watchers == set(), "the watches over HTTP to end")
        path = directory / "queue" / "control.sock"
        for _ in range(5):
            _, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b'{"operation":"tail"}\n')
            await until(lambda: len(stream._watchers) == 1, "the watch")
            writer.close()
            await until(lambda: stream._watchers == set(), "the watch over the control socket to end")
        watching = client.get("/api/v1/tail", headers=headers)
        async with watching:
            began_s = clock.monotonic_s()
            await relay.stop(30)
            assert clock.monotonic_s() - began_s < scaled(15)


async def test_a_body_in_pieces(directory: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"message":'
        await asyncio.sleep(0)
        yield b'"' + b"0" * 24 + b'"}'

    async with (
        staged(directory) as stage,
        serving(stage) as (_, client),
        client.post("/api/v1/hold", data=pieces()) as response,
    ):
        body = await response.json()
        assert (response.status, body["error"]) == (404, body["error"])
        assert body["error"].startswith(f"no message {'0' * 24} in the queue")


@pytest.mark.usefixtures("log_level_as_before")
async def test_the_log_level_of_all_processes(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Receivers and senders get it, also those that are started later, and mail goes on."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        processes = {"receivers": 1, "senders": 1}
        async with serving(stage, processes=processes) as (relay, client):
            status, body = await post(client, "/api/v1/log-level", {"level": "debug"})
            assert (status, body) == (200, {"rows": [{"level": "debug"}]})
            assert relay._intake.receivers is not None
            assert relay._intake.receivers._log_target.startswith("debug,")
            assert relay._delivery.senders is not None
            assert relay._delivery.senders._log_target.startswith("debug,")
            await send(relay, ["u@a.example"])
            await empty(relay)
            assert (await post(client, "/api/v1/log-level", {"level": "loud"}))[0] == 400
    assert "failed" not in capfd.readouterr().err
