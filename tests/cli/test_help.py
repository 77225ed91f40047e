"""What every command has: help with an example, a place in docs/commands.md, usage errors that exit 2."""

import re

import click
import pytest
from click.testing import CliRunner

from tests.cli.commands_page import PAGE, commands, page

COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_help_has_an_example(path: str) -> None:
    """A line that begins with the command; a group has one for one of its commands."""
    _, *arguments = path.split()
    result = CliRunner().invoke(COMMANDS["zonemta"], [*arguments, "--help"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(
        f"Usage: {'main' if path == 'zonemta' else 'main ' + ' '.join(arguments)}"
    )
    assert re.search(rf"^\s+(\w+( it)?:\s+)?({path}|.*\| *{path})\b", result.stdout, re.MULTILINE)


def test_every_option_has_help() -> None:
    missing = [
        f"{path} {option.opts[0]}"
        for path, command in COMMANDS.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert missing == []


def test_a_group_has_a_line_for_each_command() -> None:
    """In 80 columns, in full."""
    for path, command in COMMANDS.items():
        if isinstance(command, click.Group):
            context = click.Context(command)
            names = command.list_commands(context)
            _, *arguments = path.split()
            text = (
                CliRunner().invoke(COMMANDS["zonemta"], [*arguments, "--help"], terminal_width=80).stdout
            )
            listed = [
                line.split()[0]
                for line in text.splitlines()
                if re.match(r"  [a-z][a-z-]*  +[A-Z]", line)
            ]
            assert sorted(listed) == sorted(names), path
            assert "..." not in text.replace("[ARGS]...", ""), path


NO_ROWS = {  # what they print is no data, or has a format of its own
    "serve", "queue body", "user add", "user passwd", "user disable", "user enable", "token add", "token remove", "password",
    "export", "demo",
}  # fmt: skip


def test_every_command_that_prints_rows_has_json() -> None:
    without = {
        path.removeprefix("zonemta ")
        for path, command in COMMANDS.items()
        if not isinstance(command, click.Group)
        and not any("--json" in each.opts for each in command.params)
    }
    assert without == NO_ROWS


def test_the_page_of_commands_is_up_to_date() -> None:
    """Otherwise: python -m tests.cli.commands_page."""
    assert PAGE.read_text() == page()


def test_wrong_usage_exits_2() -> None:
    """An option that does not exist, for every command."""
    for path, command in COMMANDS.items():
        if not isinstance(command, click.Group):
            _, *arguments = path.split()
            result = CliRunner().invoke(COMMANDS["zonemta"], [*arguments, "--no-such-option"])
            assert result.exit_code == 2, path
