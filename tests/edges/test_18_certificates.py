"""18. A reload renews the certificate of implicit TLS, and says what changed or why nothing did."""

import asyncio
import ssl
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.kit.listener import certificate
from tests.kit.relay import ONE_PROCESS, Stage, relaying, staged
from zonemta_py.cli.main import main
from zonemta_py.core.errors import ConfigError
from zonemta_py.relay.relay import Relay


def serial(port: int) -> str:
    """The certificate that the relay shows."""
    return ssl.get_server_certificate(("127.0.0.1", port))


async def test_implicit_tls(directory: Path) -> None:
    cert, key, _ = certificate(directory)
    async with staged(directory) as stage:
        listener = {
            "address": "127.0.0.1:0",
            "tls": {"mode": "implicit", "certificate_file": str(cert), "key_file": str(key)},
        }
        config = stage.config(listeners=[listener], processes=ONE_PROCESS)
        async with relaying(config) as relay:
            port = relay.addresses[0].port
            before = await asyncio.to_thread(serial, port)
            certificate(directory)
            assert await relay.reload() == []
            after = await asyncio.to_thread(serial, port)
            assert after != before


async def reload(directory: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of ``zonemta reload``."""
    arguments = ["reload", "-c", str(directory / "zonemta.yaml"), *options]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    return result.exit_code, result.output


def change(stage: Stage, **keys: object) -> None:
    path = stage.directory / "zonemta.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))


async def test_another_file_is_an_error(directory: Path) -> None:
    """It has the same queue, and was taken for the file of the relay, which has no change."""
    async with staged(directory) as stage:
        (directory / "users").write_text("")
        auth = {"users_file": "users", "require_tls": False}
        listener = {"address": "127.0.0.1:0", "senders": "any", "auth": auth}
        config = stage.config(processes=ONE_PROCESS, listeners=[listener])
        async with relaying(config):
            other = directory / "new.yaml"
            other.write_text((directory / "zonemta.yaml").read_text())
            found = await asyncio.to_thread(CliRunner().invoke, main, ["reload", "-c", str(other)])
            assert (found.exit_code, found.stdout) == (2, "")
            assert f"started with {directory / 'zonemta.yaml'}, not with {other}: change" in found.stderr
            (directory / "users").write_text("# none\n")
            text = "reloaded, changed: no key\nread again: listeners[0].auth.users_file\n"
            assert await reload(directory) == (0, text)


async def test_the_command(directory: Path) -> None:
    async with staged(directory) as stage:
        config = stage.config()
        async with relaying(config):
            assert await reload(directory) == (0, "reloaded, changed: no key\n")
            zones = {"default": {"port": stage.port, "connections": 7}, "bulk": {}}
            change(stage, zones=zones, routing=[{"recipient_domain": "a.example", "zone": "bulk"}])
            code, text = await reload(directory, "--json")
            assert code == 0, text
            assert (code, text.count("zones.default.connections"), text.count("zones.bulk")) == (
                0,
                1,
                1,
            )
            change(stage, zones={"default": {"connections": "many"}})
            code, text = await reload(directory)
            assert code == 2
            assert "zones.default.connections" in text
            change(stage, zones=zones, processes={"senders": 5})
            assert await reload(directory) == (
                2, "error: not reloaded: processes.receivers, processes.senders: a change needs a restart; no other "
                "change of the file is used before\n",
            )  # fmt: skip
        assert await reload(directory) == (
            1,
            f"error: {directory / 'queue'}: no relay is running; `zonemta serve` starts one\n",
        )


async def test_a_changed_mode_and_a_function_that_fails(directory: Path) -> None:
    cert, key, _ = certificate(directory)
    async with staged(directory) as stage, relaying(stage.config(processes=ONE_PROCESS)) as relay:
        files = {"certificate_file": str(cert), "key_file": str(key)}
        listener = {"address": "127.0.0.1:0", "tls": {"mode": "implicit", **files}}
        with pytest.raises(ConfigError, match=r"listeners\.tls\.mode: a change needs a restart"):
            await relay.reload(stage.config(listeners=[listener], processes=ONE_PROCESS))
        before = relay.config
        with pytest.raises(ConfigError, match="policies"):
            await relay.reload(stage.config(policies=["no.such.module"], processes=ONE_PROCESS))
        assert relay.config is before


async def test_without_a_file(directory: Path) -> None:
    from dataclasses import replace

    async with staged(directory) as stage:
        relay = Relay(replace(stage.config(processes=ONE_PROCESS), path=""))
        with pytest.raises(ConfigError, match="not read from a file"):
            await relay.reload()
        await relay.stop()
