"""24. What an operator is shown: the warnings of ``serve`` from ``check``, addresses in use, no control characters."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.relay import ONE_PROCESS, relaying, send, staged
from zonemta_py.cli.common import echo
from zonemta_py.cli.main import main
from zonemta_py.config.endpoints import AdminAddress
from zonemta_py.config.load import load_config, parse_config
from zonemta_py.config.schema import Admin
from zonemta_py.core.errors import ConfigError
from zonemta_py.relay import preflight
from zonemta_py.relay.preflight import check_addresses, warnings
from zonemta_py.sink.script import Rule, Step

ROOT = Path(__file__).parents[2]


def warned(listener: str) -> str:
    config = parse_config(
        f"hostname: relay.example\nlisteners:\n  - address: 127.0.0.1:0\n{listener}\n", Path("z.yaml")
    )
    return "\n".join(warnings(config, "relay.example"))


@pytest.mark.parametrize("key", ["trusted_networks", "proxies"])
@pytest.mark.parametrize("networks", ["0.0.0.0/0", "0.0.0.0/1, 128.0.0.0/1", "'::/0'", "'::/1', '8000::/1', 10.0.0.0/8"])  # fmt: skip
def test_the_whole_world(key: str, networks: str) -> None:
    assert f"listeners[0].{key} lets every client" in warned(f"    {key}: [{networks}]")


def test_a_part_of_the_world() -> None:
    assert warned("    trusted_networks: [0.0.0.0/1, '::/1', 128.0.0.0/2]") == ""


def test_a_low_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_may_bind", lambda port: port != 25)
    config = parse_config(
        "hostname: relay.example\nlisteners: [{address: 127.0.0.1:25}]\n", Path("z.yaml")
    )
    assert "port 25 needs the capability" in "\n".join(warnings(config, "relay.example"))


def test_check_prints_them(directory: Path) -> None:
    path = directory / "zonemta.yaml"
    path.write_text(
        "hostname: relay.example\nlisteners: [{address: 127.0.0.1:0, trusted_networks: [0.0.0.0/0]}]\n"
        "queue: {directory: queue}\nevents: {directory: events}\n"
    )
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert result.exit_code == 0, result.output
    assert "warning: listeners[0].trusted_networks lets every client relay" in result.stderr
    as_json = CliRunner().invoke(main, ["check", "--json", "-c", str(path)])
    assert '"warnings":["listeners[0].trusted_networks' in as_json.stdout


async def test_a_zone_with_mail_that_is_missing(directory: Path) -> None:
    """While the relay runs, and when it is down."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        routing = [{"recipient_domain": "a.example", "zone": "bulk"}]
        retry = {"retry": {"delays": ["1h"]}}
        config = stage.config(routing=routing, zones={"bulk": retry}, processes=ONE_PROCESS)
        async with relaying(config) as relay:
            await send(relay, ["u@a.example"])
            await until(lambda: bool(relay.queue.traffic.failures), "the delay")
            stage.config(processes=ONE_PROCESS)  # replaces the file
            running = await asyncio.to_thread(
                CliRunner().invoke, main, ["check", "-c", str(config.path)]
            )
        down = await asyncio.to_thread(CliRunner().invoke, main, ["check", "-c", str(config.path)])
        for found in (running, down):
            assert found.exit_code == 0, found.output
            wanted = (
                "mail waits in zone 'bulk', which this configuration lacks: start and reload are refused"
            )
            assert found.stderr.count(wanted) == 1


def test_an_address_in_use(directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = parse_config(f"listeners: [{{address: 127.0.0.1:{port}}}]\n", Path("z.yaml"))
        with pytest.raises(
            ConfigError, match=rf"listeners\[0\].address: cannot listen on 127.0.0.1:{port}"
        ):
            check_addresses(config)
    check_addresses(config)


def test_the_default_address_of_the_admin_listener_may_be_in_use(directory: Path) -> None:
    """Another relay may have it: that is a warning. An address that the file names must be free."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        default = parse_config("listeners: [{address: 127.0.0.1:0}]", directory / "z.yaml")
        moved = Admin(address=(AdminAddress("127.0.0.1", port),))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(preflight, "Admin", lambda: moved)
            [warning] = check_addresses(replace(default, admin=moved))
            assert "will run without health" in warning
        with pytest.raises(ConfigError, match=f"admin.address: cannot listen on 127.0.0.1:{port}"):
            check_addresses(replace(default, admin=moved))


def test_the_container_trusts_no_client() -> None:
    [listener] = load_config(ROOT / "config" / "docker.yaml").listeners
    assert all(network.is_loopback for network in listener.trusted_networks)


def test_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    echo("a\x1b[2Jb\r\tc\x9bd\nü")
    assert capsys.readouterr().out == "a\\x1b[2Jb\\x0d\tc\\x9bd\nü\n"
