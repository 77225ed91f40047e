"""docs/commands.md, made from the commands: ``python -m tests.cli.commands_page`` writes it."""

from collections.abc import Iterator
from pathlib import Path

import click

from zonemta_py.cli.common import LazyGroup
from zonemta_py.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
HEAD = """\
# Commands

Every command exits 0 on success, 1 when its work failed, 2 on wrong usage or configuration; `serve` exits 111 when
another process has the queue open. `--help` shows an example of each command. The environment variable `ZONEMTA_CONFIG`
replaces `-c`. Progress bars and colours appear only on a terminal.

Shell completion: `eval "$(_ZONEMTA_COMPLETE=bash_source zonemta)"`, or `zsh_source`, `fish_source`.
"""


def commands(
    command: click.Command = main, path: str = "zonemta"
) -> Iterator[tuple[str, click.Command]]:
    """Every command and group that is not hidden, with its name; a group before its commands."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.commands or command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            if not each.hidden:
                yield from commands(each, f"{path} {name}")


def page() -> str:
    """The whole page."""
    sections = [
        _section(path, command) for path, command in commands() if not isinstance(command, click.Group)
    ]
    return "\n".join([HEAD, _contents(), *sections])


def _contents() -> str:
    """The commands in the groups of the help, with a line each."""
    assert isinstance(main, LazyGroup)
    lines = []
    for title, section in main.sections.items():
        lines += [f"| {title.lower()} | |", "|---|---|"]
        lines += [f"| `{name}` | {line} |" for name, (_, line) in section.items()]
        lines.append("")
    return "\n".join(lines)


def _section(path: str, command: click.Command) -> str:
    text = (command.help or "").partition("\n\n")[0]
    lines = [f"## {path}", "", " ".join(text.split()), ""]
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    if arguments:
        names = ", ".join(f"`{_metavar(p)}`" for p in arguments)
        lines += [f"Argument{'s' if len(arguments) > 1 else ''}: {names}", ""]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    lines += ["| option | meaning |", "|---|---|"]
    lines += [f"| {_names(option)} | {_meaning(option)} |" for option in options]
    return "\n".join(lines) + "\n"


def _metavar(parameter: click.Parameter) -> str:
    if parameter.metavar:
        return parameter.metavar
    if isinstance(parameter, click.Argument):
        return (parameter.name or "").upper() + ("..." if parameter.nargs == -1 else "")
    return parameter.type.name.upper().removesuffix(" RANGE")


def _names(option: click.Option) -> str:
    flag = option.is_flag or option.count
    value = "" if flag else f" {_metavar(option)}"
    if isinstance(option.type, click.Choice):
        value = ""
    return ", ".join(f"`{name}{value}`" for name in option.opts).replace("|", "\\|")


def _meaning(option: click.Option) -> str:
    parts = [(option.help or "").replace("  [default:", " [default:").strip()]
    if isinstance(option.type, click.Choice):
        parts.append(f"One of {', '.join(map(str, option.type.choices))}.")
    if option.required:
        parts.append("Required.")
    if option.show_default and option.default is not None:
        default = option.default
        values = default if isinstance(default, (list, tuple)) else [default]
        parts.append(f"Default: `{', '.join(map(str, values))}`.")
    return " ".join(parts).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
