"""What a shell completes: names of the configuration that the command line has so far."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from zonemta_py.cli.main import main

CONFIG = """
zones: {bulk: {}, transactional: {}}
pools: {default: [{address: 192.0.2.1}, {address: "2001:db8::1"}], spare: [{address: 192.0.2.9}]}
tenants: {acme: {}, other: {}}
providers: {file: own.yaml}
"""


def completed(directory: Path, line: str, incomplete: str) -> list[str]:
    (directory / "own.yaml").write_text(
        "providers: {default: {}, goodmail: {mx: ['*.goodmail.example']}}\n"
    )
    (directory / "zonemta.yaml").write_text(CONFIG)
    arguments = line.replace("CONFIG", str(directory / "zonemta.yaml")).split()
    shell = BashComplete(main, {}, "zonemta", "_ZONEMTA_COMPLETE")
    return [each.value for each in shell.get_completions(arguments, incomplete)]


@pytest.mark.parametrize(
    ("line", "incomplete", "expected"),
    [
        ("suspend -c CONFIG --zone", "", ["bulk", "default", "transactional"]),
        ("suspend -c CONFIG --provider", "goo", ["goodmail", "google"]),
        ("shaping clear -c CONFIG --pool", "s", ["spare"]),
        ("shaping status -c CONFIG --address", "", ["192.0.2.1", "192.0.2.9", "2001:db8::1", "system"]),
        ("warmup pause -c CONFIG --address", "2", ["2001:db8::1"]),
        ("queue list -c CONFIG --tenant", "a", ["acme"]),
        ("tenant show -c CONFIG", "", ["acme", "other"]),
        ("config show -c CONFIG --zone", "b", ["bulk"]),
        ("queue list --zone", "", []),  # of no configuration
        ("queue list -c CONFIG.missing --zone", "", []),
    ],
)
def test_names(directory: Path, line: str, incomplete: str, expected: list[str]) -> None:
    assert completed(directory, line, incomplete) == expected


def test_a_shell_asks(directory: Path) -> None:
    """As bash does, in a process of its own; the configuration may be named by the environment."""
    completed(directory, "", "")
    asked = {
        "_ZONEMTA_COMPLETE": "bash_complete", "COMP_WORDS": "zonemta queue flush --zone b", "COMP_CWORD": "4",
        "ZONEMTA_CONFIG": str(directory / "zonemta.yaml"),
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", "from zonemta_py.cli.main import main; main(prog_name='zonemta')"],
        env=os.environ | asked, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == "plain,bulk\n"
