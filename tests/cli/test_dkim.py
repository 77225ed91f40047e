"""``zonemta dkim``: the records that verifiers look for."""

from pathlib import Path

from click.testing import CliRunner

from tests.kit.dkim import write_key
from zonemta_py.cli.main import main
from zonemta_py.core.codec import from_json


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
