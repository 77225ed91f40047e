"""A smarthost that asks for TLS and AUTH: another relay of ours, in a process of its own."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import users_file
from tests.kit.queue import everything
from tests.kit.relay import empty, logged_events, relaying, send, staged
from zonemta_py.queue.format import keys


@pytest.fixture
def trusted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A certificate that verifying sessions of this test trust."""
    from tests.kit.listener import certificate
    from zonemta_py.transports import connect as smtp

    cert, key, context = certificate(directory)
    monkeypatch.setattr(smtp, "verifying_context", lambda ca_file: context)
    monkeypatch.setenv("SSL_CERT_FILE", str(directory / "ca.pem"))  # for senders' processes
    return cert, key


@pytest.mark.parametrize("password", ["secret", "wrong"])
async def test_tls_and_auth(directory: Path, trusted: tuple[Path, Path], password: str) -> None:
    cert, key = trusted
    users = users_file(directory)
    (directory / "password").write_text(f"{password}\n")
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        listener = {
            "address": "127.0.0.1:0",
            "trusted_networks": [],
            "tls": {"mode": "starttls", "certificate": str(cert), "key": str(key)},
            "senders": "any",
            "auth": {"users_file": str(users)},
        }
        front = stage.config(
            listeners=[listener],
            queue={"directory": "front", "min_free_disk": "1MiB"},
            events={"directory": "events-front"},
        )
        async with relaying(front) as smarthost:
            zone = {
                "smarthost": f"localhost:{smarthost.addresses[0].port}",
                "smarthost_auth": {"username": "news", "password_file": str(directory / "password")},
                "tls": "required",
                "retry": {"delays": ["1h"]},
            }
            stage.names.records["localhost"] = {"A": ["127.0.0.1"]}
            async with relaying(stage.config(zones={"default": zone})) as relay:
                await send(relay, ["x@a.example"], sender="")
                if password == "secret":
                    await until(lambda: sink.messages, "the message")
                    await empty(relay)
                    await empty(smarthost)
                else:
                    await until(
                        lambda: any(k.startswith(keys.DEFERRED) for k in everything(relay.queue.store)),
                        "a deferral",
                    )
        if password == "secret":
            assert logged_events(directory, "delivered")[0]["tls"] is True
            assert b"with ESMTPSA" in sink.messages[0].data
        else:
            refused = logged_events(directory, "deferred")[0]
            assert (refused["phase"], refused["code"], refused["status"]) == ("connect", 535, "5.7.8")
