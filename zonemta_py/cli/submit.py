"""``zonemta submit``."""

import asyncio
import hashlib
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import EXIT_FAILED, json_option, print_json, progress_bar, reports_errors
from zonemta_py.cli.lint import merge_findings, print_findings
from zonemta_py.cli.options import (
    FILE,
    HOST_PORT,
    case_sensitive_option,
    email_column_option,
    message_option,
    password_option,
    per_message_option,
    read_credentials,
    tls_option,
    user_option,
)
from zonemta_py.config.endpoints import HostPort
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.runtime import loop_factory
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.bulk_rules import ERROR, WARNING, Finding, check_message
from zonemta_py.submit.client import ListSubmission, SubmissionSettings, SubmissionSummary
from zonemta_py.submit.journal import Journal
from zonemta_py.submit.merge import MergeError, Template
from zonemta_py.submit.recipients import read_rows

REFUSALS_PRINTED = 20
INTERRUPTED = "interrupted; with --journal, run the same command again to continue"
COUNTS = {
    "accepted": "accepted by the relay",
    "before": "accepted or refused in an earlier run",
    "duplicate": "duplicates in the list",
    "invalid": "rows without a usable address or value",
    "refused": "refused",
    "deferred": "deferred by the relay; with --journal, run again to submit only these",
    "uncertain": "sent, but no reply was received",
    "unsent": "not sent",
}


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of the command, checked by click."""

    recipients: str
    message_path: Path
    sender: str
    relay: HostPort
    email_column: str | None
    connections: int
    recipients_per_message: int
    case_sensitive: bool
    journal_path: Path | None
    resend_uncertain: bool
    user: str | None
    password_file: Path | None
    tls: str
    refused_path: Path | None
    check: bool
    as_json: bool


@click.command()
@click.argument("recipients", type=click.Path(allow_dash=True))
@message_option
@click.option(
    "--from",
    "sender",
    metavar="ADDRESS",
    required=True,
    help="The envelope sender; '' for the null sender.",
)
@click.option(
    "--relay", type=HOST_PORT, default="127.0.0.1:2525", show_default=True, help="Where to submit."
)
@email_column_option
@click.option(
    "--connections",
    type=click.IntRange(1, 500),
    default=8,
    show_default=True,
    help="Concurrent connections to the relay.",
)
@per_message_option
@case_sensitive_option
@click.option(
    "--journal",
    "journal_path",
    type=FILE,
    help="Record in this file what was sent; run again with it to resume.",
)
@click.option(
    "--resend-uncertain",
    is_flag=True,
    help="Submit again where an earlier run received no reply: such a recipient may get the message twice.",
)
@user_option
@password_option
@tls_option
@click.option(
    "--refused",
    "refused_path",
    type=FILE,
    help="Write every refused recipient and its reply to this file.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Submit nothing: check the list, and the message of its first row as `zonemta lint` does.",
)
@json_option
@reports_errors
def submit(**values: Any) -> None:
    """Submit a message to a list over SMTP.

    RECIPIENTS is a CSV file with a header line, or JSON lines, or - for standard input; it is read
    row by row. Exits 0 when every usable recipient was accepted, 1 when some were not.

    \b
    Examples:
      zonemta submit list.csv --message letter.eml --from news@example.com
      zonemta submit list.csv --message letter.eml --from news@example.com --journal june.journal
      zonemta submit list.csv --message letter.eml --from news@example.com --check
    """
    options = _Options(**values)
    settings, text_sha256 = _settings(options)
    if options.check:
        _check(settings, options)
        return
    if options.refused_path is not None:
        options.refused_path.write_text("", encoding="utf-8")  # a path that cannot be written fails now
    journal = None
    if options.journal_path is not None:
        journal = Journal(
            options.journal_path, settings.sender, text_sha256, case_sensitive=options.case_sensitive
        )
    summary = _run(settings, options, journal)
    if options.refused_path is not None:
        lines = (f"{address}\t{reply}\n" for address, reply in summary.refusals)
        options.refused_path.write_text("".join(lines), encoding="utf-8")
    _print(summary, as_json=options.as_json)
    if not summary.complete:
        sys.exit(EXIT_FAILED)


def _settings(options: _Options) -> tuple[SubmissionSettings, str]:
    """The settings of the submission, and the SHA-256 of the message. Raises ConfigError for a wrong option."""
    try:
        text = options.message_path.read_bytes()
        sender = normalise(options.sender) if options.sender else ""
    except OSError as exc:
        raise ConfigError(f"--message {options.message_path}: {exc.strerror}") from exc
    except AddressError as exc:
        raise ConfigError(f"--from '{options.sender}': {exc}") from exc
    if options.recipients != "-" and not Path(options.recipients).is_file():
        raise ConfigError(f"{options.recipients}: no such file")
    settings = SubmissionSettings(
        sender=sender,
        template=Template(text),
        relay=options.relay,
        ip=_address_of(options.relay),
        ehlo=socket.getfqdn(),
        tls=options.tls,
        credentials=read_credentials(options.user, options.password_file),
        connections=options.connections,
        recipients_per_message=options.recipients_per_message,
        resend_uncertain=options.resend_uncertain,
        case_sensitive=options.case_sensitive,
    )
    return settings, hashlib.sha256(text).hexdigest()


def _check(settings: SubmissionSettings, options: _Options) -> None:
    """Print what the message of the first row breaks, and which rows cannot be used; exit 1 for an error."""
    template = settings.template
    found = merge_findings(template)
    missing = set(template.fields) - set(template.required)
    rows = invalid = 0
    for row in read_rows(options.recipients, options.email_column):
        if row.problem:
            invalid += 1
            continue
        missing.difference_update(row.fields)
        if not rows and not found:
            try:
                header, body = template.render(row.fields)
                found += check_message(header + b"\r\n" + body)
            except MergeError as exc:
                found.append(Finding(ERROR, "merge", f"row {row.number}: {exc}"))
        rows += 1
    found += [
        Finding(WARNING, "merge", f"no row has a value for '{name}': the default is used")
        for name in sorted(missing)
    ]
    if invalid or not rows:
        level = WARNING if rows else ERROR
        found.append(
            Finding(level, "list", f"{rows:,} rows can be used, {invalid:,} have no valid address")
        )
    print_findings(found, as_json=options.as_json)


def _run(settings: SubmissionSettings, options: _Options, journal: Journal | None) -> SubmissionSummary:
    with progress_bar("submitting", _count(options.recipients)) as advance:
        rows = read_rows(options.recipients, options.email_column)
        submission = ListSubmission(settings, rows, journal, advance)
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                return runner.run(_until_interrupted(submission))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            if journal is not None:
                journal.close()


async def _until_interrupted(submission: ListSubmission) -> SubmissionSummary:
    """Run ``submission``. The first SIGINT stops reading rows, the second cancels transactions under way."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(submission.run())

    def interrupt() -> None:
        if submission.summary.failure == INTERRUPTED:
            task.cancel()
        submission.stop(INTERRUPTED)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        return submission.summary
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _count(recipients: str) -> int | None:
    """The approximate number of rows, for the progress bar; None when it is not known or not shown."""
    if recipients == "-" or not sys.stderr.isatty() or not Path(recipients).is_file():
        return None
    with Path(recipients).open("rb") as file:
        return max(1, sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) - 1)


def _address_of(relay: HostPort) -> str:
    try:
        found = socket.getaddrinfo(relay.host, relay.port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise ConfigError(f"--relay {relay}: {exc.strerror}") from exc
    return str(found[0][4][0])


def _print(summary: SubmissionSummary, *, as_json: bool) -> None:
    if as_json:
        print_json({**summary.counts, "failure": summary.failure, "refusals": summary.refusals})
        return
    for name, text in COUNTS.items():
        if summary.counts[name] or name == "accepted":
            click.echo(f"{summary.counts[name]:>9,} {text}")
    for address, reply in summary.refusals[:REFUSALS_PRINTED]:
        click.echo(f"  {address}: {reply}")
    more = len(summary.refusals) - REFUSALS_PRINTED
    if more > 0:
        click.echo(f"  … and {more} more; --refused FILE writes them to a file")
    if summary.failure:
        click.secho(f"stopped: {summary.failure}", fg="red", err=True)
