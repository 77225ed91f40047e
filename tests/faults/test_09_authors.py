"""09. Who is the author of a message: the rule of senders, the signature and every receiver read the same."""

import json
import os
import random
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterable
from email.errors import MessageError
from email.header import decode_header, make_header
from email.policy import default
from email.utils import getaddresses

from hypothesis import example, given
from hypothesis import strategies as st

from zonemta_py.smtp.address import AddressError, domain_of, normalise_domain
from zonemta_py.smtp.authors import Unreadable, author_addresses
from zonemta_py.smtp.headers import scan

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


def decoded_first(value: str) -> list[str]:
    return utils(str(make_header(decode_header(value))))


READERS: tuple[Callable[[str], list[str]], ...] = (registry, utils, decoded_first)


def domains(addresses: Iterable[str]) -> set[str]:
    """The domains of what a reader returns, as IDNA has them; without an ``@`` it has found no author.

    Quotes around an address in a name are kept by some, which makes no other domain of it.
    """
    return {_domain(each.rpartition("@")[2].strip(" '")) for each in addresses if "@" in each}


def _domain(text: str) -> str:
    try:
        return normalise_domain(text)
    except AddressError:
        return text


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


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example(f'"ceo@{OTHER}" <ann@{OWN}>')
@example(f"ann@{OWN} =?utf-8?q?=2Ebank.example?= <ann@{OWN}>")
def test_no_reader_sees_another_author(value: str) -> None:
    """What is accepted for a tenant with one domain has no author of another domain for a foreign parser."""
    if ours(value) != {OWN}:
        return
    for reader in READERS:
        assert read_by(reader, value) <= {OWN}, reader.__name__


def test_many_fields() -> None:
    """A large number of fields around an accepted form, also for a parser in another language if it is installed."""
    rng = random.Random(9)
    values = []
    for _ in range(6000):
        name = "".join(rng.choices(PIECES, k=rng.randrange(6)))
        tail = "".join(rng.choices(PIECES, k=rng.randrange(3))) if rng.random() < 0.3 else ""
        values.append(rng.choice((f"{name} <ann@{OWN}>{tail}", f"{name}ann@{OWN}{tail}")))
    accepted = [value for value in values if ours(value) == {OWN}]
    assert len(accepted) > 100
    for value in accepted:
        for reader in READERS:
            assert read_by(reader, value) <= {OWN}, (reader.__name__, value)
    for value, read in zip(accepted, nodemailer(accepted), strict=False):
        assert domains(read) <= {OWN}, value


def nodemailer(values: list[str]) -> list[list[str]]:
    """The addresses that nodemailer's parser reads; none if ZONEMTA_TEST_NODE does not name a directory that has it."""
    node, directory = shutil.which("node"), os.environ.get("ZONEMTA_TEST_NODE", "")
    if not node or not directory:
        return []
    script = (
        "const require_ = require('module').createRequire(process.argv[1] + '/');"
        "const parse = require_('nodemailer/lib/addressparser');"
        "const values = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(values.map(v => parse(v, {flatten: true}).map(a => a.address))));"
    )
    sent = json.dumps([value.replace("\r\n", "") for value in values])
    run = subprocess.run(
        [node, "-e", script, directory], input=sent, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)  # type: ignore[no-any-return]
