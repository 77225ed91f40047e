"""``zonemta lint``: what would refuse or spoil bulk mail, and rules of replies that can never match."""

import asyncio
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]  # no public module parses patterns
from re import _parser as syntax  # type: ignore[attr-defined]  # as above
from typing import Any, NamedTuple

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
    read_message,
    reports_errors,
    spinner,
)
from zonemta_py.cli.options import EXISTING_FILE, FILE
from zonemta_py.config.reply_rules import SHIPPED, load_rules, make_classifier
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import PatternSet, escaped
from zonemta_py.delivery.dns import DnsChannel, NameNotFound, QueryFailed
from zonemta_py.relay.preflight import secret_warnings
from zonemta_py.smtp.address import AddressError, normalise_domain
from zonemta_py.smtp.bulk_rules import (
    ERROR,
    INFO,
    WARNING,
    Finding,
    Signing,
    author_domain,
    check_message,
)
from zonemta_py.smtp.reply_class import NAMES, ReplyClass, ReplyClassifier, ReplyRule, classified_row
from zonemta_py.smtp.verdict import Phase
from zonemta_py.submit.merge import Template

# ---- Rules that can never match, because earlier rules match every reply of theirs. Pure.
#
# Examples answer the question if one pattern contains another: texts that a pattern matches, made from its syntax tree,
# each repetition once at its least and once filled.

EXAMPLES_MAX = 300  # of one pattern
FILLER = "~ ~"  # what a repetition of any character is filled with


class RuleFinding(NamedTuple):
    """A fault of the rule that begins in ``line`` of ``source``."""

    source: str
    line: int
    text: str


def lint_rules(rules: Sequence[ReplyRule]) -> list[RuleFinding]:
    """Patterns that occur twice, and rules or patterns that can never match."""
    found = []
    owners = [number for number, rule in enumerate(rules) for _ in rule.patterns]
    everything = PatternSet([each for rule in rules for each in rule.patterns])
    place = 0  # of a pattern among those of all rules
    for number, rule in enumerate(rules):
        wider = {n for n, each in enumerate(rules[:number]) if _is_wider(each, rule)}
        bare = next((rules[n] for n in sorted(wider) if not rules[n].patterns), None)
        if bare is not None:
            found.append(_finding(rule, f"cannot win: line {bare.line} has no further condition"))
        seen: set[str] = set()
        for own, pattern in enumerate(() if bare is not None else rule.patterns):
            winner = _winner(pattern, place + own, everything, owners, wider)
            if pattern in seen:
                found.append(_finding(rule, f"pattern '{pattern}' appears twice"))
            elif winner is not None:
                line = rules[winner].line
                found.append(_finding(rule, f"pattern '{pattern}' cannot win: line {line} is first"))
            seen.add(pattern)
        place += len(rule.patterns)
    return found


def _finding(rule: ReplyRule, text: str) -> RuleFinding:
    return RuleFinding(rule.source, rule.line, text)


def _is_wider(earlier: ReplyRule, rule: ReplyRule) -> bool:
    """True if ``earlier`` holds for every code, status, phase and `unless` for which ``rule`` holds."""
    pairs = (
        (earlier.codes, rule.codes),
        (earlier.statuses, rule.statuses),
        (earlier.phases, rule.phases),
    )
    return set(earlier.unless) <= set(rule.unless) and all(
        not wide or (narrow and set(narrow) <= set(wide)) for wide, narrow in pairs
    )


def _winner(
    pattern: str, place: int, everything: PatternSet, owners: Sequence[int], wider: set[int]
) -> int | None:
    """The number of a rule that takes examples of ``pattern``, if rules take all of them; else None."""
    first: int | None = None
    for example in examples_of(pattern):
        matches = everything.matches(example)
        if place not in matches:
            continue  # the syntax tree is Python's: an anchor or a boundary may fail
        taken = wider.intersection(owners[each] for each in matches)
        if not taken:
            return None
        first = min(taken) if first is None else first
    return first


def examples_of(pattern: str) -> list[str]:
    """Texts that ``pattern`` matches, at most EXAMPLES_MAX; none for a pattern that Python cannot read."""
    try:
        tree = syntax.parse(pattern)
    except (re.error, OverflowError):
        return []
    found: list[str] = []
    for is_filled in (False, True):
        for example in _texts(list(tree), is_filled):
            found.append(example)
            if len(found) >= EXAMPLES_MAX:
                break
    return found


def _texts(items: Sequence[Any], is_filled: bool) -> Iterator[str]:
    """Texts for a sequence of nodes; of several places with alternatives, all pairs are tried."""
    if not items:
        yield ""
        return
    for head in _of_node(items[0], is_filled):
        for rest in _texts(items[1:], is_filled):
            yield head + rest


def _of_node(node: tuple[Any, Any], is_filled: bool) -> Iterator[str]:
    kind, value = node
    if kind is codes.LITERAL:
        yield chr(value)
    elif kind is codes.BRANCH:
        for branch in value[1]:
            yield from _texts(list(branch), is_filled)
    elif kind is codes.SUBPATTERN:
        yield from _texts(list(value[-1]), is_filled)
    elif kind in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        yield from _repeated(value, is_filled)
    elif kind is codes.IN:
        yield _member(value)
    elif kind in (codes.ANY, codes.NOT_LITERAL):
        yield "~"
    else:  # an anchor or a boundary
        yield ""


def _repeated(value: tuple[int, Any, Any], is_filled: bool) -> Iterator[str]:
    least, most, inner = value
    nodes = list(inner)
    if not is_filled:
        yield from (text * int(least) for text in _texts(nodes, is_filled)) if least else [""]
    elif nodes and nodes[0][0] is codes.ANY and most >= len(FILLER):
        yield FILLER
    else:
        yield from (text * max(1, int(least)) for text in _texts(nodes, is_filled))


def _member(items: Sequence[tuple[Any, Any]]) -> str:
    kind, value = items[0]
    if kind is codes.LITERAL:
        return chr(value)
    if kind is codes.RANGE:
        return chr(value[0])
    if kind is codes.CATEGORY:
        name = str(value).lower()
        return "7" if "digit" in name and "not" not in name else " " if "space" in name else "x"
    return "~"


# ---- The command.

COLOURS = {ERROR: "red", WARNING: "yellow", INFO: None}
DNS_S = 10.0


@click.command()
@click.argument("message", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--from-domain", metavar="DOMAIN", help="The domain that From should have.")
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The relay's configuration, to check its DKIM keys and signed fields.",
)
@click.option("--dns", is_flag=True, help="Ask DNS for the DMARC record of the domain in From.")
@json_option
@reports_errors
def lint(
    message: Path, from_domain: str | None, config_path: Path | None, dns: bool, as_json: bool
) -> None:
    """Check MESSAGE, a file or - for standard input, against Gmail's and Yahoo's rules for bulk senders.

    Checked are From, an aligned DKIM signature or key, one-click unsubscribe, fields that must occur once, line
    lengths, size, content and merge fields that cannot be replaced; with --dns the DMARC record. Exits 1 when an error is found.

    \b
    Examples:
      zonemta lint letter.eml -c config/zonemta.yaml
      zonemta lint letter.eml --from-domain news.example.com --dns
    """
    try:
        wanted = normalise_domain(from_domain) if from_domain else ""
    except AddressError as exc:
        raise ConfigError(f"--from-domain '{from_domain}': {exc}") from exc
    config = read_config(config_path) if config_path is not None else None
    data = sys.stdin.buffer.read() if str(message) == "-" else read_message(message)
    found = check_message(data, wanted, signing_of(config)) + merge_findings(Template(data))
    if config is not None:
        found += [Finding(WARNING, "secret", text) for text in secret_warnings(config)]
    if dns:
        found += asyncio.run(_dmarc(author_domain(data) or wanted, config))
    print_findings(found, as_json=as_json)


def merge_findings(template: Template) -> list[Finding]:
    """An error for each merge field of a message that cannot be replaced."""
    return [Finding(ERROR, "merge", problem) for problem in template.problems]


def signing_of(config: Config | None) -> Signing | None:
    """How the relay of ``config`` signs."""
    if config is None:
        return None
    return Signing([key.domain or "" for key in config.dkim.keys], config.dkim.headers)


def print_findings(found: list[Finding], *, as_json: bool) -> None:
    """Print ``found``, and exit with 1 if there is an error among them."""
    for finding in found:
        if as_json:
            print_json(finding._asdict())
            continue
        click.secho(f"{finding.level}: ", fg=COLOURS[finding.level], nl=False)
        echo(f"{finding.rule}: {finding.text}")
    if not found and not as_json:
        click.echo("ok: nothing to complain about")
    if any(finding.level == ERROR for finding in found):
        sys.exit(EXIT_FAILED)


async def _dmarc(domain: str, config: Config | None) -> list[Finding]:
    """The finding about the DMARC record of ``domain``, or of the nearest domain above it that has one."""
    servers = config.resolver.nameservers if config is not None else None
    channel = DnsChannel(servers, DNS_S)
    name = domain
    try:
        while "." in name:
            try:
                records = await channel.query(f"_dmarc.{name}", "TXT")
            except NameNotFound:
                records = ()
            except QueryFailed as exc:
                return [Finding(WARNING, "dmarc", f"_dmarc.{name} cannot be asked for: {exc}")]
            texts = [bytes(record.data.data).decode("ascii", "replace") for record in records]
            if any(text.replace(" ", "").lower().startswith("v=dmarc1") for text in texts):
                return []
            name = name.partition(".")[2]
    finally:
        channel.close()
    return [
        Finding(
            ERROR,
            "dmarc",
            f"{domain or 'From'} has no DMARC record (_dmarc.{domain} TXT v=DMARC1; p=none)",
        )
    ]


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
