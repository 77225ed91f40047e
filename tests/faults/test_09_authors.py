"""09. Who is the author of a message: the rule of senders, the signature and every receiver read the same."""

import asyncio
import inspect
import json
import os
import random
import shutil
import smtplib
import subprocess
import warnings
from collections.abc import Callable, Iterable
from email.errors import MessageError
from email.header import decode_header, make_header
from email.policy import default
from email.utils import getaddresses
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kit.dkim import write_key
from tests.kit.relay import received, relaying, staged
from zonemta_py.relay.relay import Relay
from zonemta_py.smtp.address import AddressError, domain_of, normalise, normalise_domain
from zonemta_py.smtp.authors import Unreadable, author_addresses, author_domain, first_address
from zonemta_py.smtp.headers import field_value, scan
from zonemta_py.smtp.seven_bit import NotConvertible, to_seven_bit

OWN, OTHER = "acme.example", "bank.example"
PIECES = [
    "ann", "ceo", "@", "@", OWN, OTHER, f"ann@{OWN}", f"ceo@{OTHER}", f"<ann@{OWN}>", f"<ceo@{OTHER}>", " ", " ", "\t",
    ",", "<", ">", '"', "(", ")", "(x)", "\\", '\\"', ".", ":", ";", "[", "]", "'", '"ceo"', f'"ceo@{OTHER}"', "=?", "?=",
    "=?utf-8?q?", "=?utf-8?q?ceo=40bank.example?=", "=?utf-8?q?=22?=", "=?utf-8?q?=2C?=", "=?utf-8?q?=3C?=",
    "=?utf-8?q?=40?=", "=?utf-8?q?_?=", "=?utf-8?b?QA==?=", "\u00e9", "\uff20", "\uff0e", "\u3002", "\u200b", "\r\n ",
]  # fmt: skip


def registry(value: str) -> list[str]:
    return [each.addr_spec for each in default.header_factory("From", value).addresses]


def utils(value: str) -> list[str]:
    return [address for _, address in getaddresses([value])]


def tolerant(value: str) -> list[str]:
    """As ``getaddresses`` read before it was strict: versions of Python that are in use do."""
    options = {"strict": False} if "strict" in inspect.signature(getaddresses).parameters else {}
    return [address for _, address in getaddresses([value], **options)]


def decoded_first(value: str) -> list[str]:
    return utils(str(make_header(decode_header(value))))


def tolerant_decoded_first(value: str) -> list[str]:
    return tolerant(str(make_header(decode_header(value))))


READERS: tuple[Callable[[str], list[str]], ...] = (
    registry,
    utils,
    tolerant,
    decoded_first,
    tolerant_decoded_first,
)


def domains(addresses: Iterable[str]) -> set[str]:
    """The domains of what a reader returns, as IDNA has them; without a local part and a domain it is no author.

    Quotes around an address in a name are kept by some, which makes no other domain of it.
    """
    parts = [each.rpartition("@") for each in addresses]
    return {
        name for local, _, domain in parts if local.strip(" '") and (name := _domain(domain.strip(" '")))
    }


def _domain(text: str) -> str:
    """It is empty for what no domain can be, unless the other domain is in it."""
    try:
        return normalise_domain(text)
    except AddressError:
        return text if OTHER in text else ""


def ours(value: str) -> set[str] | None:
    """The domains of the authors, or None for a field that is refused."""
    header = f"From: {value}\r\n".encode()
    try:
        return {domain_of(each) for each in author_addresses(header, scan(header)[0])}
    except Unreadable:
        return None


def read_by(reader: Callable[[str], list[str]], value: str) -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return domains(reader(value.replace("\r\n", "")))
        except (MessageError, LookupError, ValueError, AttributeError, TypeError, RecursionError):
            return set()  # it has no author for this reader


def same_author(value: str) -> None:
    """The reader of reports, also of a folded field, and that of DKIM have an author of the accepted field, of its domain."""
    header = f"From: {value}\r\n".encode()
    fields = scan(header)[0]
    authors = author_addresses(header, fields)
    for each in (value, field_value(header, fields[0]), value.replace("\r\n", "\n")):
        first = normalise(first_address(each))
        assert first in authors, value
        assert domain_of(first) == author_domain(header, fields) == OWN, value


@given(st.lists(st.sampled_from(PIECES), max_size=8).map(lambda each: "".join([*each, f" <ann@{OWN}>"])))
@example(f'"ceo@{OTHER}" <ann@{OWN}>')
@example(f"ann\r\n <ann@{OWN}>")
@example(f"ann@{OWN} =?utf-8?q?=2Ebank.example?= <ann@{OWN}>")
def test_no_reader_sees_another_author(value: str) -> None:
    """What is accepted for a tenant with one domain has no author of another domain for a foreign parser."""
    if ours(value) != {OWN}:
        return
    same_author(value)
    for reader in READERS:
        assert read_by(reader, value) <= {OWN}, reader.__name__


@cache
def accepted_fields() -> list[str]:
    """A large number of fields around the address of a tenant, those that are accepted."""
    rng = random.Random(9)
    values = []
    for _ in range(6000):
        name = "".join(rng.choices(PIECES, k=rng.randrange(6)))
        tail = "".join(rng.choices(PIECES, k=rng.randrange(3))) if rng.random() < 0.3 else ""
        values.append(rng.choice((f"{name} <ann@{OWN}>{tail}", f"{name}ann@{OWN}{tail}")))
    return [value for value in values if ours(value) == {OWN}]


def test_many_fields() -> None:
    assert len(accepted_fields()) > 100
    for value in accepted_fields():
        same_author(value)
        for reader in READERS:
            assert read_by(reader, value) <= {OWN}, (reader.__name__, value)


# Parsers in other languages: a list of fields as JSON on standard input, the addresses of each on standard output.
DOVECOT = (
    "use Email::Address::XS qw(parse_email_addresses); use JSON::PP; my $v = decode_json(do { local $/; <STDIN> });"
    "print encode_json([map { [map { $_->address // '' } parse_email_addresses($_)] } @$v]);"
)
NODEMAILER = (
    "const require_ = require('module').createRequire(process.argv[1] + '/');"
    "const parse = require_('nodemailer/lib/addressparser');"
    "const values = JSON.parse(require('fs').readFileSync(0));"
    "console.log(JSON.stringify(values.map(v => parse(v, {flatten: true}).map(a => a.address))));"
)
NODE_MODULES = os.environ.get("ZONEMTA_TEST_NODE", "")  # a directory that has nodemailer


def has_dovecot_parser() -> bool:
    command = ["perl", "-MEmail::Address::XS", "-e", "1"]
    return (
        shutil.which("perl") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def read_in(command: list[str]) -> None:
    """Asserts that a parser of another language reads no other author in what is accepted."""
    values = accepted_fields()
    sent = json.dumps([value.replace("\r\n", "") for value in values])
    run = subprocess.run(command, input=sent, capture_output=True, text=True, check=True)
    for value, read in zip(values, json.loads(run.stdout), strict=True):
        assert domains(read) <= {OWN}, value


@pytest.mark.skipif(not has_dovecot_parser(), reason="Debian: apt-get install libemail-address-xs-perl")
def test_dovecot_reads_the_same() -> None:
    """Its parser of addresses, as Email::Address::XS."""
    read_in(["perl", "-e", DOVECOT])


@pytest.mark.skipif(not NODE_MODULES, reason="ZONEMTA_TEST_NODE names no directory with nodemailer")
def test_nodemailer_reads_the_same() -> None:
    read_in(["node", "-e", NODEMAILER, NODE_MODULES])


# ---- what leaves is what was judged

NAMES = [
    "\u00e9", "\u00fc,", f"ceo@{OTHER}", f"\u00e9@{OTHER}", f"ceo\uff20{OTHER}", "<", ">", ",", ";", ":", "(", ")", '\\"', "\\\\", ".",
    "[", "]", "=?utf-8?q?=22?=", "=?", "\r\n", f"<ceo@{OTHER}>,", "\u4f60\u597d",
]  # fmt: skip


def seven_bit(value: str) -> tuple[bytes, str] | None:
    """The header in 7 bits and its From; None if the message has no such form."""
    try:
        header, _ = to_seven_bit(f"From: {value}\r\n".encode(), b"x\r\n")
    except NotConvertible:
        return None
    (author,) = [each for each in scan(header)[0] if each.name == b"from"]
    return header, header[author.value : author.end].decode().strip()


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6).map(" ".join))
def test_a_quoted_name_in_seven_bits(name: str) -> None:
    """Whatever a quoted name has, the converted field has the author that was judged, for every reader."""
    value = f'"{name}" <ann@{OWN}>'
    if ours(value) != {OWN}:
        return
    converted = seven_bit(value)
    assert converted is not None
    assert ours(converted[1]) == {OWN}
    for reader in READERS:
        assert read_by(reader, converted[1]) <= {OWN}, reader.__name__


@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_any_field_in_seven_bits(name: str) -> None:
    """A field that was accepted is converted to one with the same authors, or the message is not sent in 7 bits."""
    value = f"{name} <ann@{OWN}>"
    converted = seven_bit(value) if ours(value) == {OWN} else None
    if converted is not None:
        assert ours(converted[1]) == {OWN}
        for reader in READERS:
            assert read_by(reader, converted[1]) <= {OWN}, reader.__name__


REFUSED = [
    f"ceo@ {OTHER} <ann@{OWN}>", f"ceo @{OTHER} <ann@{OWN}>", f"ceo@(x){OTHER} <ann@{OWN}>", f"ceo(x)@{OTHER} <ann@{OWN}>",
    f'"ceo" @ {OTHER} <ann@{OWN}>',
]  # fmt: skip
ACCEPTED = [
    f'"ceo@{OTHER}" <ann@{OWN}>', f'"Smith, Ann" <ann@{OWN}>', f"ann (of acme) <ann@{OWN}>", f"ann@{OWN} (Ann)",
    f'"ceo@{OTHER}, \u00c9" <ann@{OWN}>', f'"\u00e9 <ceo@{OTHER}>" <ann@{OWN}>',
]  # fmt: skip


@pytest.mark.parametrize("processes", [0, 2])
async def test_two_tenants_and_two_receivers(directory: Path, processes: int) -> None:
    """A receiver without 8BITMIME gets the same author as one with it, and a signature of that domain only."""
    owners = {OWN: "127.0.0.11", OTHER: "127.0.0.12"}
    for domain in owners:
        write_key(directory / domain, "ed25519")
    async with staged(directory) as stage:
        sinks = [
            await stage.receiver("new.example"),
            await stage.receiver("old.example", extensions=("PIPELINING",)),
        ]
        config = stage.config(
            tenants={
                domain.partition(".")[0]: {"domains": [domain], "networks": [f"{ip}/32"]}
                for domain, ip in owners.items()
            },
            dkim={
                "keys": [{"domain": domain, "selector": "s", "key_file": domain} for domain in owners]
            },
            processes={"receivers": processes, "senders": processes},
        )
        async with relaying(config) as relay:
            for own, other in ((OWN, OTHER), (OTHER, OWN)):
                fields = {OWN: own, OTHER: other}
                for form in (*REFUSED, *ACCEPTED):
                    value = (
                        form.replace(OTHER, "OTHER").replace(OWN, own).replace("OTHER", fields[OTHER])
                    )
                    code = await asyncio.to_thread(submit, relay, owners[own], own, value)
                    assert code == (550 if form in REFUSED else 250), value
            for sink in sinks:
                for message in await received(sink, 2 * len(ACCEPTED)):
                    own = message.sender.rpartition("@")[2]
                    header = message.data.partition(b"\r\n\r\n")[0] + b"\r\n"
                    assert author_addresses(header, scan(header)[0]) == [f"ann@{own}"]
                    assert header.count(b"DKIM-Signature") == header.count(f"d={own};".encode()) == 1
                    assert sink is sinks[0] or header.isascii()


def submit(relay: Relay, source: str, own: str, author: str) -> int:
    """The code of the reply to a message to both receivers."""
    host, port = relay.addresses[0]
    message = f"From: {author}\r\nSubject: \u00e9\r\n\r\n\u00e9\r\n".encode()
    with smtplib.SMTP(host, port, "client.example", source_address=(source, 0)) as client:
        client.ehlo()
        client.mail(f"s@{own}")
        client.rcpt("a@new.example")
        client.rcpt("a@old.example")
        return client.data(message)[0]
