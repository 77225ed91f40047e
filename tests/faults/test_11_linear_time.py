"""11. No message, parameter, request or reply takes more time than in proportion to its size, nor holds others up."""

import asyncio
import base64
import gc
import math
import smtplib
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.kit.deadlines import scaled, slowness
from tests.kit.relay import http_port, relaying, send, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.requests import ClassifyRequest, HistoryRequest, ListRequest, TailRequest
from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.config.schema import MessageOptions
from zonemta_py.config.shaping import load_shaping
from zonemta_py.config.values import duration, moment
from zonemta_py.core.codec import from_json, from_query
from zonemta_py.core.errors import NotAccepted, SessionLost
from zonemta_py.delivery import sts_policies
from zonemta_py.dequeue import envelope
from zonemta_py.intake.http import PATH
from zonemta_py.intake.options import of_header
from zonemta_py.intake.stamping import key_in_header
from zonemta_py.queue.format.records import NO_OPTIONS
from zonemta_py.queue.suspensions import part_of_key
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Script, Step
from zonemta_py.smtp import auth, authors, bulk_rules, dkim, reply_class
from zonemta_py.smtp import reply as http_mapping
from zonemta_py.smtp.address import contract_verp, expand_verp, normalise, normalise_domain
from zonemta_py.smtp.auth import read_proxy_header
from zonemta_py.smtp.commands import Refused, parse_mail, parse_rcpt
from zonemta_py.smtp.encoded_words import decode
from zonemta_py.smtp.headers import HeaderSplitter, HeaderTooLarge, field_value, fold, names_in, scan
from zonemta_py.smtp.reply import (
    RECIPIENT_FIELD,
    SENDER_FIELD,
    ReplyReader,
    encode_address,
    make_reply,
    read_reply,
)
from zonemta_py.smtp.reports import dsn
from zonemta_py.smtp.reports.reader import read_notices
from zonemta_py.smtp.seven_bit import NotConvertible, ascii_value, to_seven_bit
from zonemta_py.submit.merge import MergeError, Template

SIZE = 8_000  # characters of the largest input
LARGE = 160_000  # of an input that takes too little time at SIZE to compare: 400 times as much if it is quadratic
FAST_S = 0.008  # of CPU: nothing to compare
GROWTH_MAX = 9.0  # for four times the input: 4 is linear, 16 quadratic
TRIES = 4

UNITS = [
    "=?a?q?x", "=?utf-8?q?x?= ", "=?utf-8?b?", "?=", "(", ")", "()", '"', '"a" ', "\\", '\\"', "<", ">", "<>", "<a@b.c>,",
    "@", "a@", "a@b.c,", ",", ";", ":", ".", "a.", "-", "a-", " ", "\t", " a", "\r\n ", "\r\nX: y", "1", "1 ", "1h", "1.1.",
    "P1", "T", "%41", "+41", "=", "a=b&", "; a=b", "; a*1*=b", "[", "{", "[[", '{"a":', "1,", "\u00e9", "\u00e9 ",
    "\u00e9 <a@b.c>,", '"\u00e9" ', "(\u00e9)", "a\u0301\u0316", "\u00fc.", "xn--", "http://a ", "www.", "5.1.1 ",
    "for more information ", "please contact your ", "if you believe that ", "(in reply to ", "your ip: ", "visit <> ",
    "recipient address rejected: ", "a_", "~", "/", "#", "*", "\u200b", "A1b2C3d4E5f6G7", "@[127.0.0.1]", "submission-key-",
    "{{", "{{ ", "<a ", "<a b='", "<!--", "<script>", "<style>{{v}}", "<style>url(", "<b style='url(", "@import ", "/*",
    "%7B%7B", "\\(", "\\x{41}", "d=", "dkim=", "t=y;", "mx: a\n", "Received: ",
]  # fmt: skip
AROUND = [("", ""), ("a", "@b.example")]
# The email package, which parses these, takes 160 ms for LARGE, and 25 ms for a body of it: not all units.
COSTLY, COSTLY_UNITS = ("7-bit ", "report "), ("(", '"', ",", "=?a?q?x")
OPTIONS = MessageOptions()
NAMES = ("From", "Subject", "Content-Type", "Message-ID")
EXPECTED = (
    ValueError,
    NotAccepted,
    Refused,
    NotConvertible,
    HeaderTooLarge,
    SessionLost,
    RecursionError,
)


def header(name: str, text: str) -> bytes:
    return f"{name}: {text}\r\n".encode("utf-8", "replace")


def authors_of(text: str) -> None:
    block = header("From", text)
    fields = scan(block)[0]
    authors.author_domain(block, fields)
    authors.first_address(field_value(block, fields[0]))
    authors.author_addresses(block, fields)


def header_block(text: str) -> None:
    block = header("Subject", text)
    splitter = HeaderSplitter()
    splitter.feed(block + b"\r\nbody\r\n")
    fold(splitter.header)
    names_in(block)
    fields = splitter.fields
    key_in_header(splitter.header, fields, [("Subject",)])
    dkim.to_sign(
        splitter.header, fields, dkim.signed_names(fields, ("subject",), ()), b"DKIM-Signature: b="
    )


def option(name: str) -> Callable[[str], None]:
    def parse(text: str) -> None:
        of_header(OPTIONS, {name.lower(): text}, NO_OPTIONS, 10**12)

    return parse


def in_seven_bits(name: str) -> Callable[[str], None]:
    def convert(text: str) -> None:
        ascii_value(name, text.encode("utf-8", "replace") + b"\xc3\xa9")
        part = header(name, text.replace("\r\n", " "))
        to_seven_bit(part + b"MIME-Version: 1.0\r\n", b"\xc3\xa9\r\n")
        to_seven_bit(
            b"Content-Type: multipart/mixed; boundary=b\r\n",
            b"--b\r\n" + part + b"\r\n\xc3\xa9\r\n--b--\r\n",
        )

    return convert


def report(name: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        field, kind = (
            header(name, text),
            b"feedback-report" if name == "Original-Rcpt-To" else b"delivery-status",
        )
        read_notices(
            b"Content-Type: multipart/report; boundary=r\r\n" + field + b"\r\n--r\r\nContent-Type: message/" + kind
            + b"\r\n\r\n" + field + b"\r\n" + field + b"\r\n--r--\r\n", ["a@b.example"],
        )  # fmt: skip

    return read


def lint(text: str) -> None:
    for name in ("From", "List-Unsubscribe", "List-Unsubscribe-Post", "DKIM-Signature"):
        bulk_rules.check_message(header(name, text) + b"\r\n" + text.encode("utf-8", "replace"))


def command(text: str) -> None:
    """As long as a line may be: the bound is that of the connection."""
    for each in (f"FROM:<{text[:4000]}>", f"FROM:{text[:4000]}", f"FROM:<a@b.example> {text[:4000]}"):
        with suppress(Refused):
            parse_mail(each, extended=True, max_size=1000)
        with suppress(Refused):
            parse_rcpt(
                each.replace("FROM", "TO"), smtputf8=True, extended=True, hostname="relay.example"
            )


def parameters(text: str) -> None:
    for parse in (
        dsn.parse_notify,
        dsn.valid_envid,
        dsn.valid_orcpt,
        dsn.decode_xtext,
    ):
        parse(text)
    contract_verp(f"{text}@b.example", "news@b.example")
    expand_verp("news@b.example", f"{text}@b.example")


def addresses(text: str) -> None:
    for parse in (normalise, normalise_domain):
        for each in (text, f"a@{text}"):
            with suppress(ValueError):
                parse(each)


def credentials(text: str) -> None:
    for make in auth.MECHANISMS.values():
        for each in (text, base64.b64encode(text.encode("utf-8", "replace")).decode()):
            with suppress(StopIteration):
                next(make(each))
    with suppress(ValueError):
        read_proxy_header(b"PROXY TCP4 " + text.encode("utf-8", "replace") + b"\r\n")


def request(text: str) -> None:
    for parse in (
        http_mapping.decode_address, part_of_key, from_json, duration, moment, option("X-Expire"),
        lambda each: from_query({"limit": each, "zone": each, "since": each}, ListRequest),
        lambda each: from_query({"zone": each, "count": each}, TailRequest),
        lambda each: from_query({"text": each, "limit": each}, HistoryRequest),
        lambda each: from_query({"text": each}, ClassifyRequest),
    ):  # fmt: skip
        with suppress(ValueError, TypeError):
            parse(text)


CLASSIFIER = make_classifier(None)
SHAPING = load_shaping(None, shipped=True)


def reply(text: str) -> None:
    make_reply(550, text)
    found = http_mapping.read_reply(f'550; message="{text}"')
    http_mapping.read_reply(f"550 {text}")
    if found is not None:
        http_mapping.write_reply(found)
        http_mapping.retry_after_s(found, 0)
    with suppress(ValueError):
        reply_class.read_reply(text)
    reply_class.embedded_status(550, text[: reply_class.SEARCHED_MAX])
    for phase in ("connect", "rcpt", "dot"):
        CLASSIFIER.explain(phase, 550, "", text)
    envelope._REPLY.match(text)
    reader = ReplyReader()
    with suppress(SessionLost):
        for line in (text[:8000], text):
            reader.feed(b"550-" + line.encode("utf-8", "replace") + b"\r\n", [])


def patterns(text: str) -> None:
    """Of the classifier, of the shaping rules, and of the sink, whose recipients are as long as a line may be."""
    said = reply_class.searched(550, "5.1.1", text)
    CLASSIFIER._patterns.matches(said)
    SHAPING._patterns.matches(said)
    rules = [Rule(Step.RCPT, recipient=each) for each in ("*a*b*c*@*.x*", "*" * 30 + "z", "?*?*?*?*z")]
    Script(rules).match(Step.RCPT, text[:4000], "", [], "127.0.0.1", 1)


def policy(text: str) -> None:
    sts_policies.policy_id([b"v=STSv1; id=" + text.encode("utf-8", "replace")])
    with suppress(ValueError):
        sts_policies.parse_policy(
            f"version: STSv1\nmode: enforce\nmax_age: 1\nmx: {text}\n".encode("utf-8", "replace")
        )


def letter(text: str) -> None:
    """A letter with merge fields: nothing looks for a field, an encoded word or a tag more than a few times."""
    data = text.encode("utf-8", "replace")
    for kind in (b"text/html", b"text/plain"):
        with suppress(MergeError):
            Template(b"From: a@b.example\nContent-Type: " + kind + b"\n\n{{v}}" + data)
    for name in (b"To", b"Subject", b"List-Unsubscribe", b"Content-Type", b"Message-ID"):
        with suppress(MergeError):
            Template(b"From: a@b.example\n" + name + b": {{v}}" + data + b"\n\nx")


TARGETS: dict[str, Callable[[str], object]] = {
    "authors": authors_of, "header": header_block, "encoded words": decode, "lint": lint,
    **{f"option {name}": option(name) for name in ("X-Campaign", "X-Tags", "X-Not-Before", "X-Expire", "X-Priority")},
    **{f"7-bit {name}": in_seven_bits(name) for name in NAMES},
    **{f"report {name}": report(name) for name in ("Content-Type", "To", "Date", "Original-Rcpt-To", "Original-Envelope-Id",
                                                   "Final-Recipient", "Diagnostic-Code", "Status")},
    "command": command, "parameters": parameters, "addresses": addresses, "credentials": credentials, "request": request,
    "reply": reply, "patterns": patterns, "policy": policy, "letter": letter,
}  # fmt: skip


def cpu_s(parse: Callable[[str], object], text: str) -> float:
    """Without the collector, whose work grows with the objects of all other tests."""
    gc.disable()
    began_s = time.thread_time()
    with suppress(*EXPECTED):
        parse(text)
    took_s = time.thread_time() - began_s
    gc.enable()
    return took_s


def growth(parse: Callable[[str], object], make: Callable[[int], str], size: int) -> str | None:
    """Compare ``size`` with a quarter of it: the times if they grow more than linearly, empty if not, None: too fast."""
    fast_s, least_s = FAST_S * slowness(), math.inf
    whole, part = make(size), make(size // 4)
    most_s = cpu_s(parse, whole)
    for _ in range(TRIES):
        if most_s < fast_s:
            return None
        least_s = min(least_s, cpu_s(parse, part))
        if most_s < GROWTH_MAX * least_s:
            return ""
        most_s = min(most_s, cpu_s(parse, whole))
    return f"{size} characters: {least_s:.4f} s, then {most_s:.4f} s"


@pytest.mark.parametrize("name", TARGETS)
def test_growing_input(name: str) -> None:
    """Four times as much takes less than nine times as long, by the least of several runs."""
    parse, slow = TARGETS[name], []
    for unit in UNITS:
        for before, behind in AROUND:

            def make(size: int, unit: str = unit, before: str = before, behind: str = behind) -> str:
                return before + unit * (size // len(unit)) + behind

            found = growth(parse, make, SIZE)
            if found:  # a window of fixed length may not be full yet at a quarter of it; what is quadratic is so here, too
                found = growth(parse, make, 4 * SIZE)
            if found is None and not before and (unit in COSTLY_UNITS or not name.startswith(COSTLY)):
                found = growth(parse, make, LARGE)
            if found:
                slow.append(f"{before}{unit}…{behind}: {found}")
    assert not slow, "\n".join(slow)


def test_quadratic_time_with_a_small_constant_is_found() -> None:
    def parse(text: str) -> None:
        for at in range(0, len(text), 200):
            text.find("ab", at)

    def make(size: int) -> str:
        return "a" * size

    assert growth(parse, make, SIZE) is None
    assert growth(parse, make, LARGE)
    assert growth(lambda text: [each for each in text if each == "b"], make, 10 * LARGE) == ""


# ---- one message beside others

WORDS = b"=?a?q?x" * 140_000
ADDRESSES = b"a@acme.example, " * 40_000 + b"a@acme.example"
FIELDS = [
    b"X-Campaign: " + WORDS,
    b"X-Tags: " + WORDS,
    b"X-Expire: " + b"1" * 900_000,
    b"From: " + ADDRESSES,
]


async def longest_gap_s(done: asyncio.Event) -> float:
    """The longest turn of the loop."""
    gap_s = 0.0
    while not done.is_set():
        began_s = time.monotonic()
        await asyncio.sleep(0)
        gap_s = max(gap_s, time.monotonic() - began_s)
    return gap_s


async def longest_dialogue_s(port: int, done: asyncio.Event) -> float:
    """The longest time from a connection to the answer to EHLO; it goes to any receiver."""
    longest_s = 0.0
    while not done.is_set():
        began_s = time.monotonic()
        async with await RawClient.connect(port) as client:
            await client.ehlo()
        longest_s = max(longest_s, time.monotonic() - began_s)
    return longest_s


@pytest.mark.parametrize("processes", [0, 2])
async def test_one_message_beside_others(directory: Path, processes: int) -> None:
    """By SMTP and HTTP: it is refused, or accepted without a signature, and the relay goes on at once."""
    async with staged(directory) as stage:
        await stage.receiver("one.example")
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True},
            listeners=[{"address": "127.0.0.1:0", "options": {"unusable": "refuse"}}],
            processes={"receivers": processes, "senders": processes},
        )
        async with relaying(config) as relay:
            done, port = asyncio.Event(), relay.addresses[0].port
            watches = [longest_gap_s(done), *(longest_dialogue_s(port, done) for _ in range(4))]
            watched = asyncio.gather(*watches)
            pool = relay._intake.receivers
            before = pool.pids if pool is not None else []
            for field in FIELDS:
                # Folded as a client may: a line has 65,536 bytes at most.
                lines = [field[at : at + 60_000] for at in range(0, len(field), 60_000)]
                message = b"\r\n ".join(lines) + b"\r\n\r\ntext\r\n"
                for submit in (by_smtp, by_http):
                    reply = await submit(relay, message)
                    assert reply.startswith("250" if field.startswith(b"From") else "550 5.6.0"), reply
            done.set()
            loop_s, *dialogues_s = await watched
            assert loop_s < scaled(1)
            assert max(dialogues_s) < scaled(5)  # several processes share the machine with other tests
            assert before == (pool.pids if pool is not None else []), "a receiver was killed"


async def by_smtp(relay: Relay, message: bytes) -> str:
    try:
        await send(relay, ["a@one.example"], message)
    except smtplib.SMTPDataError as exc:
        return f"{exc.smtp_code} {exc.smtp_error!r}".replace("b'", "")
    return "250"


async def by_http(relay: Relay, message: bytes) -> str:
    headers = {
        SENDER_FIELD: encode_address("s@acme.example"), RECIPIENT_FIELD: encode_address("a@one.example"),
        "Content-Type": "message/rfc822",
    }  # fmt: skip
    url = f"http://127.0.0.1:{http_port(relay)}{PATH}"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=message, headers=headers) as answer,
    ):
        return str(read_reply(answer.headers["X-Smtp-Reply"]))
