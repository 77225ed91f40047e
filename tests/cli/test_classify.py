"""``zonemta classify``."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from zonemta_py.cli.main import main
from zonemta_py.smtp.reply_class import ReplyClass

BLOCKED = "550 5.7.1 Client host [192.0.2.1] blocked using zen.spamhaus.org"


def zonemta(*arguments: object, data: str = "") -> Result:
    return CliRunner().invoke(main, ["classify", *(str(each) for each in arguments)], input=data)


def test_one_reply() -> None:
    shown = zonemta(BLOCKED)
    assert shown.exit_code == 0
    assert shown.output.startswith("blocked  KumoMTA SpamBlock, PowerMTA spam-related  [")
    assert "config/classify.yaml:" in shown.output
    row = json.loads(zonemta("--json", *BLOCKED.split()).output)  # a shell splits what is not quoted
    assert (row["class"], row["code"], row["status"]) == ("blocked", 550, "5.7.1")
    assert "no rule" in zonemta("554 the moon is wrong").output


def test_replies_from_standard_input() -> None:
    """A line that is no reply is named, the others are classified, and the exit code is 1."""
    shown = zonemta("-", "--json", data=f"{BLOCKED}\n\nnonsense\n452 4.2.2 over quota\n")
    assert shown.exit_code == 1
    assert [json.loads(line)["class"] for line in shown.stdout.splitlines()] == [
        "blocked",
        "mailbox_full",
    ]
    assert "'nonsense': a reply begins with its code" in shown.stderr


def test_the_phases_in_which_a_reply_has_another_class(tmp_path: Path) -> None:
    """Without --phase they are named, so that the relay's answer is no surprise."""
    rules = tmp_path / "classify.yaml"
    rules.write_text(
        "rules:\n  - {class: greylisted, pattern: 'come back', phase: rcpt}\n  - {class: policy, pattern: 'come back'}\n"
    )
    said = ["classify", "--rules", str(rules), "451 come back"]
    found = CliRunner().invoke(main, said)
    assert found.stdout.splitlines()[0].startswith("policy  KumoMTA PolicyRelated")
    assert found.stdout.splitlines()[1:] == ["  --phase rcpt: greylisted"]
    found = CliRunner().invoke(main, [*said, "--phase", "rcpt", "--json"])
    row = json.loads(found.stdout)
    assert (row["class"], row["phases"]) == ("greylisted", {})


def test_own_rules(tmp_path: Path) -> None:
    """From --rules, or from the configuration; --phase for rules that ask for it."""
    rules = tmp_path / "own.yaml"
    rules.write_text("rules: [{class: policy, pattern: moon, phase: rcpt}]")
    config = tmp_path / "zonemta.yaml"
    config.write_text("classify: {file: own.yaml}")
    for option in (("--rules", rules), ("-c", config)):
        assert zonemta(*option, "--phase", "rcpt", "550 moon").output.startswith("policy ")
        assert zonemta(*option, "--phase", "dot", "550 moon").output.startswith("other ")
    rules.write_text("rules: [{class: policy}]")
    wrong = zonemta("--rules", rules, "550 moon")
    assert wrong.exit_code == 2 and f"{rules}:1: rules[0]" in wrong.stderr
    assert zonemta().exit_code == 2


def test_classes_and_lint(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in zonemta("--classes", "--json").output.splitlines()]
    assert [row["class"] for row in rows] == list(ReplyClass)
    table = zonemta("--classes").output
    assert "InvalidRecipient" in table
    assert len(table.splitlines()) == len(rows) + 1, "a row is a line where the output is no terminal"
    rules = tmp_path / "own.yaml"
    rules.write_text("rules:\n- {class: policy, pattern: moon}\n- {class: virus, pattern: the moon}\n")
    found = zonemta("--lint", "--rules", rules)
    assert found.exit_code == 1
    assert found.output == f"{rules}:3: pattern 'the moon' cannot win: line 2 is first\n"
    rules.write_text("rules: [{class: policy, pattern: moon}]")
    assert zonemta("--lint", "--rules", rules).output == "ok: every rule can win\n"
