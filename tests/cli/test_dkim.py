"""``zonemta dkim``: the records that verifiers look for."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.dkim import write_key
from zonemta_py.cli.main import main
from zonemta_py.core.codec import from_json

DOCS = Path(__file__).parents[2] / "docs/configuration.md"


def test_records(directory: Path) -> None:
    """One line per key; long texts in parts of 255 bytes."""
    write_key(directory / "r.pem")
    write_key(directory / "e.pem", "ed25519")
    (directory / "z.yaml").write_text(
        "dkim:\n  keys:\n"
        "    - {domain: example.org, selector: r1, key_file: r.pem}\n"
        "    - {domain: example.org, selector: e1, key_file: e.pem}\n"
    )
    shown = CliRunner().invoke(main, ["dkim", "-c", str(directory / "z.yaml")])
    assert shown.exit_code == 0, shown.output
    first, second = shown.output.splitlines()
    assert first.startswith('r1._domainkey.example.org. TXT "v=DKIM1; k=rsa; p=')
    assert first.count('" "') == 1
    assert second.startswith('e1._domainkey.example.org. TXT "v=DKIM1; k=ed25519; p=')
    rows = (
        CliRunner().invoke(main, ["dkim", "-c", str(directory / "z.yaml"), "--json"]).output.splitlines()
    )
    assert from_json(rows[1])["name"] == "e1._domainkey.example.org"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_how_keys_are_made(directory: Path) -> None:
    """The lines of docs/configuration.md: they make keys that are private, and the configuration there has them."""
    section = DOCS.read_text().partition("## dkim\n")[2].partition("\n## ")[0]
    commands, config = re.findall(r"```(?:sh|yaml)\n(.*?)```", section, re.DOTALL)
    subprocess.run(["sh", "-e", "-c", commands], cwd=directory, check=True, capture_output=True)
    (directory / "z.yaml").write_text(config)
    checked = CliRunner().invoke(main, ["check", "-c", str(directory / "z.yaml")])
    assert (checked.exit_code, "can read" in checked.stderr) == (0, False), checked.output
    shown = CliRunner().invoke(main, ["dkim", "-c", str(directory / "z.yaml")]).stdout
    assert re.findall(r"^(\w+)\._domainkey\.example\.com\. TXT .*k=(\w+);", shown, re.MULTILINE) == [
        ("s2026", "rsa"), ("e2026", "ed25519")
    ]  # fmt: skip
    (directory / "e2026.pem").chmod(0o644)
    checked = CliRunner().invoke(main, ["check", "-c", str(directory / "z.yaml")])
    assert "dkim.keys[1].key_file: every user of this machine can read" in checked.stderr


def test_wrong_keys_are_named(directory: Path) -> None:
    """By `check` as by `serve`: file, key, what was found."""
    for text, wanted in (
        ("{domain: Example.org, selector: s, key_file: k}", "lower-case"),
        ("{domain: example.org, key_file: k}", "selector"),
        ("{domain: example.org, selector: s, key_file: none.pem}", "none.pem"),
    ):
        (directory / "z.yaml").write_text(f"dkim:\n  keys:\n    - {text}\n")
        shown = CliRunner().invoke(main, ["check", "-c", str(directory / "z.yaml")])
        assert shown.exit_code == 2
        assert wanted in shown.output
