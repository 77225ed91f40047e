"""``zonemta suspend`` and ``resume``: what they refuse, with the same exit codes whether a relay runs or not."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.kit.deadlines import until
from tests.kit.relay import relaying, send, staged
from zonemta_py.cli.main import main
from zonemta_py.config.schema import Config
from zonemta_py.sink.script import Rule, Step

UNKNOWN = [
    ("--zone", "defualt", "no zone 'defualt'; did you mean 'default'?"),
    ("--provider", "gogle", "no provider 'gogle'; did you mean 'google'?"),
    (
        "--provider",
        "bigmail",
        "has the name of its MX host, with a dot: `zonemta queue summary --by destination` shows it",
    ),
    ("--address", "192.0.2.9", "no address '192.0.2.9'; there is system"),
    ("--tenant", "acne", "no tenant 'acne'; did you mean 'acme'?"),
]


async def zonemta(config: Config, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "-c", str(config.path)])


async def assert_refused(config: Config) -> None:
    """Names that the configuration does not have are wrong usage; what is not suspended cannot be resumed."""
    for option, name, problem in UNKNOWN:
        found = await zonemta(config, "suspend", option, name)
        assert (found.exit_code, problem in found.stderr) == (2, True), found.output
    for option, name in (
        ("--zone", "default"), ("--provider", "google"), ("--address", "192.0.2.9"), ("--domain", "x.example"),
        ("--tenant", "acme"), ("--tenant", "acne"),
    ):  # fmt: skip
        found = await zonemta(config, "resume", option, name)
        problem = f"{option[2:]} {name} is not suspended; suspended: nothing"
        assert (found.exit_code, problem in found.stderr) == (1, True), found.output


async def test_unknown_names_and_what_is_not_suspended(directory: Path) -> None:
    async with staged(directory) as stage:
        config = stage.config(tenants={"acme": {}}, processes={"receivers": 0, "senders": 0})
        async with relaying(config):
            await assert_refused(config)
            assert (await zonemta(config, "suspend", "--tenant", "acme")).exit_code == 0
            once = await zonemta(config, "resume", "--tenant", "acme")
            assert once.stdout == "resumed acme\n", once.output
            assert (await zonemta(config, "resume", "--tenant", "acme")).exit_code == 1
        await assert_refused(config)


async def test_a_provider_that_no_table_has(directory: Path) -> None:
    """Its name is shown where its mail is; one that may be wrong is accepted, because its mail may come later."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        config = stage.config(processes={"receivers": 0, "senders": 0})
        async with relaying(config) as relay:
            await send(relay, ["u@a.example"])
            await until(lambda: bool(relay.queue.traffic.failures), "the attempt")
            found = await zonemta(config, "queue", "summary", "--by", "destination", "--json")
            assert json.loads(found.stdout)["provider"] == "mx.a.example"
            known = await zonemta(config, "suspend", "--provider", "mx.a.example")
            assert (known.exit_code, known.stderr) == (0, "")
            part = await zonemta(config, "suspend", "--campaign", "june", "--provider", "mx.b.example")
            assert "warning: no mail for a provider 'mx.b.example' is known. One that" in part.stderr
        down = await zonemta(config, "suspend", "--provider", "mx.c.example")
        assert (down.exit_code, "warning: no mail" in down.stderr) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--address", "192.0.2.1", "--address", "192.0.2.2"), "--address: one name is expected, once"),
        (("--campaign", ""), "--campaign: one name is expected, once"),
        (("--list", "--zone", "default"), "--list has no other options but --json"),
        (("--campaign", "x" * 65), "expected 1 to 64 printable characters"),
        (("--campaign", "a\nb"), "that is no name of a campaign"),
        (("--campaign", "june", "--tenant", "acme", "--address", "192.0.2.1"), "name what to suspend"),
        (("--tenant", "acme", "--user", "ann"), "name what to suspend"),
        (("--user", "ann"), "no user 'ann'; there is none"),
    ],
)
async def test_wrong_usage(directory: Path, arguments: tuple[str, ...], problem: str) -> None:
    """Nothing is suspended by it."""
    async with staged(directory) as stage:
        config = stage.config(tenants={"acme": {}}, processes={"receivers": 0, "senders": 0})
        async with relaying(config) as relay:
            found = await zonemta(config, "suspend", *arguments)
            assert (found.exit_code, problem in found.stderr) == (2, True), found.output
            assert relay.queue.suspended.names() == []


@pytest.mark.parametrize("duration", ["0s", "0h", "PT0S"])
def test_a_suspension_lasts_longer_than_nothing(tmp_path: Path, duration: str) -> None:
    """0s was without end."""
    (tmp_path / "z.yaml").write_text("queue: {directory: queue}\n")
    arguments = ["suspend", "-c", str(tmp_path / "z.yaml"), "--zone", "default", "--for", duration]
    found = CliRunner().invoke(main, arguments)
    assert (found.exit_code, f"'{duration}' is not a duration of more than 0s" in found.stderr) == (
        2,
        True,
    )


async def test_a_mistake_in_the_file_while_the_relay_runs(directory: Path) -> None:
    """It is no obstacle; a user whose file cannot be found is suspended, with a warning."""
    async with staged(directory) as stage:
        config = stage.config(
            zones={"default": {}, "spare": {}}, processes={"receivers": 0, "senders": 0}
        )
        async with relaying(config):
            assert config.path is not None
            with Path(config.path).open("a") as file:
                file.write("bogus: 1\n")
            found = await zonemta(config, "queue", "summary", "--zone", "spare")
            assert found.exit_code == 0, found.output
            found = await zonemta(config, "suspend", "--user", "unknown")
            assert (found.exit_code, found.stdout) == (0, "suspended user unknown\n")
            assert "warning: the configuration cannot be read" in found.stderr
