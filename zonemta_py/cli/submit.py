"""``zonemta submit``."""

import asyncio
import hashlib
import signal
import socket
import sys
from pathlib import Path

import click

from zonemta_py.cli.common import EXIT_FAILED, json_option, print_json, reports_errors
from zonemta_py.cli.parameters import HOST_PORT
from zonemta_py.cli.progress import progress_bar
from zonemta_py.cli.submission_options import (
    email_column_option,
    message_option,
    password_option,
    per_message_option,
    read_credentials,
    tls_option,
    user_option,
)
from zonemta_py.config.units import HostPort
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.loop import loop_factory
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.submit.client import Plan, Submission, Summary
from zonemta_py.submit.journal import Journal
from zonemta_py.submit.merge import Template
from zonemta_py.submit.recipients import read_rows

REFUSALS_PRINTED = 20
INTERRUPTED = "interrupted; with --journal, run the same command again to go on"


@click.command()
@click.argument("recipients", type=click.Path(allow_dash=True))
@message_option
@click.option("--from", "sender", required=True, help="The envelope sender; '' for the null sender.")
@click.option(
    "--relay", type=HOST_PORT, default="127.0.0.1:2525", show_default=True, help="Where to submit."
)
@email_column_option
@click.option(
    "--connections",
    type=click.IntRange(1, 500),
    default=8,
    show_default=True,
    help="Sessions at a time.",
)
@per_message_option
@click.option(
    "--journal",
    "journal_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Remember what was sent in this file; run again to resume.",
)
@click.option(
    "--resend-uncertain",
    is_flag=True,
    help="Send again where an earlier run never heard the answer: some may get it twice.",
)
@user_option
@password_option
@tls_option
@click.option(
    "--refused",
    "refused_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every refused recipient and its reply to this file.",
)
@json_option
@reports_errors
def submit(
    recipients: str,
    message_path: Path,
    sender: str,
    relay: HostPort,
    email_column: str | None,
    connections: int,
    recipients_per_message: int,
    journal_path: Path | None,
    resend_uncertain: bool,
    user: str | None,
    password_file: Path | None,
    tls: str,
    refused_path: Path | None,
    as_json: bool,
) -> None:
    """Submit a message to a list over SMTP.

    RECIPIENTS is a CSV file with a header line, or JSON lines, or - for standard input; it is read
    row by row. Exits 0 when every usable recipient was accepted, 1 when some were not.

    \b
    Examples:
      zonemta submit list.csv --message letter.eml --from news@example.com
      zonemta submit list.csv --message letter.eml --from news@example.com --journal june.journal
    """
    try:
        text = message_path.read_bytes()
        sender = normalise(sender) if sender else ""
    except OSError as exc:
        raise ConfigError(f"--message {message_path}: {exc.strerror}") from exc
    except AddressError as exc:
        raise ConfigError(f"--from '{sender}': {exc}") from exc
    if recipients != "-" and not Path(recipients).is_file():
        raise ConfigError(f"{recipients}: no such file")
    if refused_path is not None:
        refused_path.write_text("", encoding="utf-8")  # better refused now than after the work
    plan = Plan(
        sender=sender,
        template=Template(text),
        relay=relay,
        ip=_address_of(relay),
        ehlo=socket.getfqdn(),
        tls=tls,
        credentials=read_credentials(user, password_file),
        connections=connections,
        recipients_per_message=recipients_per_message,
        resend_uncertain=resend_uncertain,
    )
    journal = Journal(journal_path, sender, hashlib.sha256(text).hexdigest()) if journal_path else None
    summary = _run(plan, recipients, email_column, journal)
    if refused_path is not None:
        lines = (f"{address}\t{reply}\n" for address, reply in summary.refusals)
        refused_path.write_text("".join(lines), encoding="utf-8")
    _print(summary, as_json=as_json)
    if not summary.complete:
        sys.exit(EXIT_FAILED)


def _run(plan: Plan, recipients: str, column: str | None, journal: Journal | None) -> Summary:
    with progress_bar("submitting", _count(recipients)) as advance:
        submission = Submission(plan, read_rows(recipients, column), journal, advance)
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                return runner.run(_until_interrupted(submission))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            if journal is not None:
                journal.close()


async def _until_interrupted(submission: Submission) -> Summary:
    """The first Ctrl-C stops taking rows and hears the answers under way, the second cuts them off."""
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
    """How many rows a file has, roughly, for the progress bar."""
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


def _print(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        print_json({**summary.counts, "failure": summary.failure, "refusals": summary.refusals})
        return
    words = {
        "accepted": "accepted by the relay",
        "before": "accepted or refused by an earlier run",
        "duplicate": "stood twice in the list",
        "invalid": "are no addresses",
        "refused": "refused",
        "deferred": "deferred by the relay; with --journal, run again to send just these",
        "uncertain": "sent without hearing an answer",
        "unsent": "not sent",
    }
    for name, word in words.items():
        if summary.counts[name] or name == "accepted":
            click.echo(f"{summary.counts[name]:>9,} {word}")
    for address, reply in summary.refusals[:REFUSALS_PRINTED]:
        click.echo(f"  {address}: {reply}")
    more = len(summary.refusals) - REFUSALS_PRINTED
    if more > 0:
        click.echo(f"  … and {more} more; --refused FILE keeps them all")
    if summary.failure:
        click.secho(f"stopped: {summary.failure}", fg="red", err=True)
