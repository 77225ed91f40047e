"""What the fuzzers feed: each target takes any bytes, and may raise only the errors its parser documents."""

from collections.abc import Callable
from pathlib import Path

from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError, QueueCorrupt, SessionLost
from zonemta_py.delivery.sts_policies import parse_policy, policy_id
from zonemta_py.queue.format import records
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.commands import Refused, parse_mail, parse_rcpt
from zonemta_py.smtp.headers import HeaderSplitter, HeaderTooLarge
from zonemta_py.smtp.reply import TEXT_MAX, Reply, ReplyReader
from zonemta_py.smtp.reports.dsn import decode_xtext, parse_notify, valid_envid, valid_orcpt
from zonemta_py.smtp.transparency import DotDecoder, DotEncoder, LineCheck


def reply(data: bytes) -> None:
    """Printable, bounded replies, or SessionLost; the split does not matter."""
    whole, cut, reader = list[Reply](), list[Reply](), ReplyReader()
    try:
        ReplyReader().feed(data, whole)
    except SessionLost:
        return
    for byte in data:
        reader.feed(bytes([byte]), cut)
    assert cut == whole
    assert all(r.text.isprintable() and len(r.text) <= TEXT_MAX and 200 <= r.code < 600 for r in whole)


def address(data: bytes) -> None:
    """One spelling, stable, or AddressError."""
    try:
        text = normalise(data.decode("utf-8", "surrogateescape"))
    except AddressError:
        return
    assert normalise(text) == text
    assert "\r" not in text
    assert "\n" not in text


def commands(data: bytes) -> None:
    """Values without line ends, or a reply of one line."""
    text = data.decode("utf-8", "surrogateescape")
    for parse in (
        lambda: parse_mail(text, extended=True, max_size=1000),
        lambda: parse_rcpt(text, smtputf8=True, extended=True, hostname="relay.example"),
    ):
        try:
            value = repr(parse())
            assert "\\r" not in value
            assert "\\n" not in value
        except Refused as exc:
            assert exc.reply[:1] in "45"
            assert "\n" not in exc.reply


def options(data: bytes) -> None:
    """Any parameter is valid or not; what is valid decodes to printable text."""
    text = data.decode("latin-1")
    parse_notify(text)
    if valid_envid(text) or valid_orcpt(text):
        assert decode_xtext(text).isprintable()


def header(data: bytes) -> None:
    """Header and body together are the message, at any split."""
    whole, pieces = HeaderSplitter(), HeaderSplitter()
    try:
        body = whole.feed(data) + whole.finish()
    except HeaderTooLarge:
        return
    again = b"".join(pieces.feed(bytes([byte])) for byte in data) + pieces.finish()
    assert (pieces.header, again) == (whole.header, body)
    assert len(whole.header) + len(body) <= len(data) + 2


def dots(data: bytes) -> None:
    """What is encoded decodes to itself and ends at its own end; no bare line end is called clean."""
    text = data.replace(b"\r", b"").replace(b"\n", b"\r\n")
    if not text.endswith(b"\r\n"):
        text += b"\r\n"
    encoder, decoder = DotEncoder(), DotDecoder()
    sent = b"".join(encoder.feed(bytes([byte])) for byte in text) + encoder.finish()
    assert sent.count(b"\r\n.\r\n") + sent.startswith(b".\r\n") == 1
    assert decoder.feed(sent + b"NOOP\r\n") == text
    assert decoder.done
    assert decoder.trailing == b"NOOP\r\n"
    check = LineCheck(1000)
    check.feed(data)
    check.finish()
    clean = data.count(b"\r") == data.count(b"\n") == data.count(b"\r\n")
    assert check.bare == (not clean)


def config(data: bytes) -> None:
    """A configuration, or ConfigError."""
    try:
        parse_config(data.decode("utf-8", "replace"), Path("z.yaml"))
    except ConfigError as exc:
        assert str(exc).startswith("z.yaml")


def stored(data: bytes) -> None:
    """A record, or QueueCorrupt."""
    for read in (
        records.read_mark, records.read_meta, records.read_recipient_record, records.read_inflight,
        records.read_open, records.read_note, records.read_submitted,
    ):  # fmt: skip
        try:
            read(data)
        except QueueCorrupt:
            pass


def policy(data: bytes) -> None:
    """An MTA-STS policy whose own hosts it permits, or ValueError."""
    policy_id([data])
    try:
        found = parse_policy(data)
    except ValueError:
        return
    assert all(found.permits(host.replace("*", "a")) for host in found.hosts)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (reply, address, commands, options, header, dots, config, stored, policy)
}
