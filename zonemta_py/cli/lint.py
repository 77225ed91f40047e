"""``zonemta lint``."""

import asyncio
import sys
from pathlib import Path

import click

from zonemta_py.cli.common import (
    EXIT_FAILED,
    echo,
    json_option,
    print_json,
    read_config,
    read_message,
    reports_errors,
)
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import ConfigError
from zonemta_py.delivery.dns_channel import DnsChannel, NameNotFound, QueryFailed
from zonemta_py.relay.secret_files import secret_warnings
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
from zonemta_py.submit.merge import Template

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
    """Say what MESSAGE, a file or - for standard input, lacks of Gmail's and Yahoo's rules for bulk senders.

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
