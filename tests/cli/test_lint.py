"""``zonemta lint`` and ``zonemta submit --check``."""

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner, Result

from tests.smtp.test_bulk_rules import LETTER, changed
from zonemta_py.cli.main import main
from zonemta_py.sink.nameserver import NameServer


def zonemta(*arguments: object, data: bytes = b"") -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], input=data)


def test_findings(tmp_path: Path) -> None:
    """A file or standard input; text or JSON; exit 1 for an error only."""
    letter = tmp_path / "letter.eml"
    letter.write_bytes(LETTER)
    good = zonemta("lint", letter)
    assert good.exit_code == 0
    assert good.output.startswith("info: dkim: there is no signature")
    letter.write_bytes(changed(b"=One-Click", b"=x"))
    bad = zonemta("lint", letter, "--json", "--from-domain", "NEWS.acme.example")
    assert bad.exit_code == 1
    rows = [json.loads(line) for line in bad.output.splitlines()]
    assert [(row["level"], row["rule"]) for row in rows] == [("error", "unsubscribe"), ("info", "dkim")]
    assert zonemta("lint", "-", data=LETTER).output == good.output
    assert zonemta("lint", tmp_path / "none.eml").exit_code == 2
    assert zonemta("lint", "/proc/self/mem").output.startswith("error: /proc/self/mem: ")
    wrong = zonemta("lint", letter, "--from-domain", "a..b")
    assert wrong.exit_code == 2
    assert "--from-domain 'a..b'" in wrong.output


async def test_keys_and_dmarc(tmp_path: Path) -> None:
    """The keys of the configuration, and the record of the domain or of one above it."""
    server = NameServer({"_dmarc.acme.example": {"TXT": ['"v=DMARC1; p=reject"']}})
    port = await server.start()
    config = tmp_path / "z.yaml"
    config.write_text(
        f"resolver: {{nameservers: ['127.0.0.1:{port}']}}\n"
        "dkim: {keys: [{domain: acme.example, selector: s, key_file: k.pem}]}\n"
    )
    letter = tmp_path / "letter.eml"
    letter.write_bytes(LETTER)
    found = await asyncio.to_thread(zonemta, "lint", letter, "-c", config, "--dns")
    assert (found.exit_code, found.output) == (0, "ok: nothing to complain about\n")
    letter.write_bytes(changed(b"news.acme.example>", b"other.example>"))
    found = await asyncio.to_thread(zonemta, "lint", letter, "-c", config, "--dns")
    assert found.exit_code == 1
    assert "error: dkim: no aligned DKIM signature for other.example: there is no key" in found.output
    assert "error: dmarc: other.example has no DMARC record (_dmarc.other.example TXT" in found.output
    server.close()


def test_a_list_and_its_letter(tmp_path: Path) -> None:
    """Nothing is sent: there is no relay. Merge fields are those of the first usable row."""
    (tmp_path / "letter.eml").write_bytes(changed(b"Spring", b"Hello {{name}}"))
    (tmp_path / "list.csv").write_text("email,name\nnot an address,x\na@b.example,Ann\n")
    arguments = [
        "submit", tmp_path / "list.csv", "--message", tmp_path / "letter.eml", "--from", "s@acme.example",
        "--relay", "127.0.0.1:1", "--check",
    ]  # fmt: skip
    found = zonemta(*arguments)
    assert found.exit_code == 0
    assert "warning: list: 1 rows can be used, 1 have no valid address" in found.output
    (tmp_path / "list.csv").write_text("email\na@b.example\n")
    found = zonemta(*arguments)
    assert found.exit_code == 1
    assert "error: merge: row 2: there is no value for 'name'" in found.output
