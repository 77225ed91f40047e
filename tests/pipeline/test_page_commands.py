"""docs/pipeline.md: its commands exist, with these options."""

import re
import shlex

import click
import pytest

from tests.pipeline.test_airflow import PAGE
from zonemta_py.cli.pipeline.group import pipeline

# What the page says that … stands for.
REST = re.compile(r"^\(`…` is `(.+)`\.\)$", re.MULTILINE)
BLOCK = re.compile(r"^```sh\n(.+?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    text = PAGE.read_text()
    rest = REST.search(text)
    assert rest is not None
    lines = (line for block in BLOCK.findall(text) for line in block.splitlines())
    return [
        shlex.split(line.replace("…", rest[1]), comments=True)[2:]
        for line in lines
        if line.startswith("zonemta pipeline ")
    ]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_valid(words: list[str]) -> None:
    """Its options exist, and those that are required are there; the files need not be."""
    command = pipeline.commands[words[0]]
    given, rest, _ = command.make_parser(click.Context(command)).parse_args(words[1:])
    assert rest == []
    missing = [each.name for each in command.params if each.required and not given.get(str(each.name))]
    assert missing == []


def test_no_output_is_written_twice() -> None:
    """A reader who tries one command after the other meets no "exists"; a suppression file is replaced."""
    outputs = [words[words.index("--output") + 1] for words in commands() if "--output" in words]
    outputs.remove("bounced.txt")
    assert len(outputs) == len(set(outputs))
