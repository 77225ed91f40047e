"""``zonemta classify``."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from zonemta_py.cli.common import (
    EXIT_FAILED,
    EXIT_USAGE,
    echo,
    fail,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
)
from zonemta_py.cli.options import EXISTING_FILE, FILE
from zonemta_py.cli.progress import spinner
from zonemta_py.config.reply_rules import SHIPPED, load_rules, make_classifier
from zonemta_py.core.text import escaped
from zonemta_py.smtp.classification import NAMES, ReplyClass, ReplyClassifier, classified_row
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.rule_lint import lint_rules


@click.command()
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "-c",
    "--config",
    "config_path",
    type=FILE,
    help="A configuration, for the rules that its key classify.file names.",
)
@click.option("--rules", type=EXISTING_FILE, help="Rules that are asked before the shipped ones.")
@click.option(
    "--phase",
    type=click.Choice([each.value for each in Phase]),
    help="When the server said it, for rules that depend on it.",
)
@click.option("--classes", is_flag=True, help="List the classes with KumoMTA's and PowerMTA's names.")
@click.option(
    "--lint",
    is_flag=True,
    help="Check the rules for those that cannot win: of --rules or --config, else the shipped ones.",
)
@json_option
@reports_errors
def classify(
    texts: tuple[str, ...],
    config_path: Path | None,
    rules: Path | None,
    phase: str | None,
    classes: bool,
    lint: bool,
    as_json: bool,
) -> None:
    """Say what a reply of a server is about: its class, and the rule that gives it.

    TEXT is a reply with its code, as a server or a log has it; - reads replies from standard input, one on each line.
    Exits 1 if a line is no reply, or --lint finds something.

    \b
    Examples:
      zonemta classify "550 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.example"
      zonemta classify - --json < replies.txt
      zonemta classify --lint --rules own.yaml
    """
    if rules is None and config_path is not None:
        rules = read_config(config_path).classify.file
    if classes:
        _print_classes(as_json=as_json)
    elif lint:
        _lint(rules, as_json=as_json)
    elif texts == ("-",):
        lines = (line.strip() for line in sys.stdin)
        _print_all(
            (line for line in lines if line), make_classifier(rules), phase or "", as_json=as_json
        )
    elif texts:
        _print_all([" ".join(texts)], make_classifier(rules), phase or "", as_json=as_json)
    else:
        fail("a TEXT is needed, or -, --classes or --lint", EXIT_USAGE)


def _print_all(texts: Iterable[str], classifier: ReplyClassifier, phase: str, *, as_json: bool) -> None:
    failed = False
    for text in texts:
        try:
            row = classified_row(classifier, text, phase)
        except ValueError as exc:
            failed = True
            click.echo(escaped(f"error: '{text[:80]}': {exc}"), err=True)
            continue
        if as_json:
            print_json(row)
        else:
            _print_row(row)
    if failed:
        sys.exit(EXIT_FAILED)


def _print_row(row: dict[str, Any]) -> None:
    rule = f"{row['file']}:{row['line']}" if row["file"] else "no rule"
    echo(f"{row['class']}  KumoMTA {row['kumomta']}, PowerMTA {row['powermta']}  [{rule}]")
    for phase, name in row["phases"].items():
        echo(f"  --phase {phase}: {name}")


def _print_classes(*, as_json: bool) -> None:
    table = Table("class", "KumoMTA", "PowerMTA", box=None)
    for each in ReplyClass:
        names = NAMES[each]
        if as_json:
            print_json({"class": each, "kumomta": names.kumomta, "powermta": names.powermta})
        table.add_row(each, names.kumomta, names.powermta)
    if not as_json:
        print_table(table)


def _lint(own: Path | None, *, as_json: bool) -> None:
    with spinner("looking for rules that cannot win"):
        found = lint_rules(load_rules(own if own is not None else SHIPPED))
    for finding in found:
        if as_json:
            print_json(finding._asdict())
        else:
            echo(f"{finding.source}:{finding.line}: {finding.text}")
    if found:
        sys.exit(EXIT_FAILED)
    if not as_json:
        click.echo("ok: every rule can win")
