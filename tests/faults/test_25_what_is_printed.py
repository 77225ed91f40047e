"""25. What is printed shows no secret, and nothing that commands a terminal or turns the direction of writing."""

import asyncio
import json
import logging
from base64 import b64encode
from pathlib import Path

import pytest
from click.testing import CliRunner
from markupsafe import Markup
from rich.table import Table

from tests.kit.local_transport import local_message
from tests.kit.relay import ONE_PROCESS, relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.page.responses import make_environment
from zonemta_py.cli.common import echo, fail, print_json, print_table
from zonemta_py.cli.events import print_event
from zonemta_py.cli.main import main
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.logs import LogTarget, configure_logs
from zonemta_py.pipeline.report.page import make_environment as rendering_environment
from zonemta_py.smtp.dialogue import DialogueLines
from zonemta_py.transports.http import HttpTransport

URL = "https://user:hunter2@hook.example/in?token=hunter2&to=x#hunter2"
CONFIG = f"""
zones:
  default: {{transport: http, http: {{url: '{URL}'}}}}
  other: {{transport: pipe, pipe: {{command: [send, '--to={URL}', --token, hunter2, 'Authorization: Bearer hunter2']}}}}
intake: {{scan: {{rspamd: 'http://rspamd.example/?password=hunter2'}}}}
queue: {{redis: {{url: 'redis://:hunter2@h/0?password=hunter2'}}, s3: {{bucket: b, notices: 'https://sqs.example/q?sig=hunter2'}}}}
"""
HOSTILE = "a\x1b[2J\x9b31m\u202egro.elpmaxe@nna\u2066\x7f"
UNSAFE = ("\x1b", "\x9b", "\u202e", "\u2066", "\x7f")


def is_safe(text: str) -> bool:
    return not any(each in text for each in UNSAFE)


# ---- secrets


@pytest.mark.parametrize("options", [[], ["--json"], ["--zone", "default"], ["--domain", "a.example"]])
def test_config_show(directory: Path, options: list[str]) -> None:
    path = directory / "z.yaml"
    path.write_text(CONFIG)
    result = CliRunner().invoke(main, ["config", "show", "-c", str(path), *options])
    assert result.exit_code == 0, result.output
    assert "hunter2" not in result.output
    if "--domain" not in options:
        assert "https://hook.example/in?token=[secret]&to=[secret]" in result.output


@pytest.mark.parametrize(
    "text",
    [
        "zones: {default: {transport: http, http: {url: 'ftp://h/?token=hunter2'}}}",
        "zones: {default: {connections: 'https://u:hunter2@h/?token=hunter2'}}",
        "intake: {scan: {rspamd: 'ftp://h/?token=hunter2'}}",
        "queue: {redis: {url: 'http://h?token=hunter2'}}",
        "log: {level: 'https://h/?token=hunter2'}",
        f"'{URL}': 1",
        f"queue: {{'{URL}': 1}}",
        f"{{'{URL}': 1, '{URL}': 1}}",
        f"tenants: {{'{URL}': {{}}}}",
        f"pools: {{'{URL}': [{{address: x}}]}}",
    ],
)
def test_an_error_of_a_configuration(directory: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="://") as failed:
        parse_config(text, directory / "z.yaml")
    assert "hunter2" not in str(failed.value)


def test_a_command_with_a_placeholder_that_there_is_not(directory: Path) -> None:
    text = "zones: {default: {transport: pipe, pipe: {command: [send, '--password=hunter2{x}']}}}"
    with pytest.raises(ConfigError, match=r"found '--password=\[secret\]'; placeholders") as failed:
        parse_config(text, directory / "z.yaml")
    assert "hunter2" not in str(failed.value)


async def test_a_server_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    transport = HttpTransport("http://127.0.0.1:1/in?token=hunter2", 5, "relay.example")
    await transport.deliver(local_message(b"x"))
    transport.close()
    assert "http://127.0.0.1:1/in?token=[secret]" in caplog.text
    assert "hunter2" not in caplog.text


SECRET = b64encode(b"\0news\0hunter2")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (b"AUTH PLAIN " + SECRET, "AUTH PLAIN [secret]"), (b"AUTH " + SECRET, "AUTH [secret]"), (b"AUTH", "AUTH"),
        (b"auth plain " + SECRET, "AUTH plain [secret]"), (b"AUTH LOGIN " + SECRET + b" " + SECRET, "AUTH LOGIN [secret]"),
        (b"AUTH\tPLAIN\t" + SECRET, "AUTH PLAIN [secret]"), (b"AUTH PLAIN=" + SECRET, "AUTH [secret]"),
        (b"AUTH XOAUTH2 " + SECRET, "AUTH XOAUTH2 [secret]"),
    ],
)  # fmt: skip
def test_auth_in_a_trace(command: bytes, shown: str) -> None:
    """Also without a mechanism, and when the server repeats it."""
    lines = DialogueLines()
    assert list(lines.client(command + b"\r\n")) == [shown]
    [reply] = lines.server(b"501 5.5.4 Unknown: " + command + b"\r\n")
    assert SECRET.decode() not in reply
    assert list(lines.client(b"NOOP\r\n")) == ["NOOP"]


# ---- characters


def test_what_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines, tables, JSON, events and errors; for a program JSON is the same."""
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    print_table(table)
    echo(HOSTILE)
    print_event(
        {"event": "bounced", "time_ms": 0, "recipient": HOSTILE, "reply": HOSTILE, "mx": HOSTILE}
    )
    with pytest.raises(SystemExit):
        fail(HOSTILE)
    out = capsys.readouterr()
    assert is_safe(out.out)
    assert is_safe(out.err)
    print_json({"recipient": HOSTILE})
    text = capsys.readouterr().out
    assert is_safe(text)
    assert json.loads(text) == {"recipient": HOSTILE}


def test_a_page() -> None:
    """The page of the relay and the report of the pipeline: values, and not the markup of a template."""
    for environment in (make_environment(HOSTILE), rendering_environment()):
        template = environment.from_string("<b>{{ name }}</b>{{ safe }}")
        page = template.render(name=HOSTILE, safe=Markup("<i>x</i>\x9b"))
        assert page.startswith("<b>a\\x1b[2J\\x9b31m\\u202egro")
        assert "<i>x</i>" in page


@pytest.mark.parametrize("format_", ["text", "json"])
def test_the_log(format_: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers = []
    try:
        configure_logs(LogTarget("info", format_, "stderr"))
        logging.getLogger("zonemta").info("from %s", HOSTILE)
    finally:
        root.handlers = before
        root.setLevel(level)
    text = capsys.readouterr().err
    assert "from a" in text
    assert is_safe(text)


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
async def test_the_name_of_a_client(directory: Path, as_json: bool) -> None:
    """A stranger's EHLO comes to an operator by the event log."""
    name = "\x9b31m\u202egro"
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        config = stage.config(processes=ONE_PROCESS)
        async with relaying(config) as relay, await RawClient.connect(relay.addresses[0][1]) as raw:
            assert (await raw.command(f"EHLO {name}")).startswith("250")
            reply = await raw.message(b"Subject: x\r\n\r\nx\r\n.\r\n", "x@a.example")
            message = reply.rsplit(" ", 1)[-1]
    options = ["--json"] if as_json else []
    command = ["history", message, "-c", str(directory / "zonemta.yaml"), *options]
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert result.exit_code == 0, result.output
    assert is_safe(result.output)
    if as_json:
        assert json.loads(result.stdout.splitlines()[0])["helo"] == name
