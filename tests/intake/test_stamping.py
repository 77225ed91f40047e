"""What is added to a header, what is removed, and the zones of recipients."""

import re
from pathlib import Path

import pytest

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import ListenerSettings, MessageOptions
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.stamping import (
    LOOP,
    MESSAGE_ID_MAX,
    MessageContent,
    MessageEnvelope,
    MessageRules,
    first_value,
    make_rules,
    stamp,
)
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.records import Origin
from zonemta_py.routing import make_router
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.headers import scan

CONFIG = parse_config(
    """
zones: {default: {}, bulk: {}, local: {}}
routing:
  - header: X-Sending-Zone
  - {recipient_domain: "*.local", zone: local}
  - {sender_domain: "news.*", zone: bulk}
""",
    Path("zonemta.yaml"),
)
RULES = make_rules(CONFIG, ListenerSettings(max_hops=3), "relay.example", make_router(CONFIG), [])
ORIGIN = Origin("127.0.0.1:2525", "192.0.2.1", "client.example", "", "ESMTP")
ENVELOPE = MessageEnvelope("a@b.example", [Rcpt("c@d.example", 4, "rfc822;x")], ORIGIN, False)


def stamped(
    header: bytes, envelope: MessageEnvelope = ENVELOPE, rules: MessageRules = RULES
) -> NewMessage:
    fields, end = scan(header)
    assert end == len(header)
    return stamp(rules, envelope, MessageContent(header, fields, True, b"hash"), "id1", None)


def test_received_and_missing_fields() -> None:
    """Received, then Message-ID and Date, then the header as it was."""
    new = stamped(b"Subject: x\r\n")
    assert re.fullmatch(
        r"Received: from client\.example \(\[192\.0\.2\.1\]\)\r\n\tby relay\.example with ESMTP id id1\r\n"
        r"\tfor <c@d\.example>;\r\n\t(?P<date>.+)\r\n"
        r"Message-ID: <id1@relay\.example>\r\nDate: (?P=date)\r\nSubject: x\r\n",
        new.header.decode(),
    )
    assert new.message_id == "<id1@relay.example>"
    assert (new.eight_bit, new.body_hash, new.smtputf8) == (True, b"hash", False)


def test_fields_that_are_there() -> None:
    header = b"Date: then\r\nmessage-id:  <mine@b> \r\n"
    new = stamped(header)
    assert new.header.endswith(b"\r\n" + header)
    assert new.header.count(b"ate: ") == new.header.count(b"id: ") == 1
    assert new.message_id == "<mine@b>"


def test_a_long_message_id() -> None:
    """The header keeps it; events hold its beginning."""
    new = stamped(b"Message-ID: " + b"x" * 5000 + b"\r\n")
    assert new.message_id == "x" * MESSAGE_ID_MAX
    assert b"x" * 5000 in new.header


def test_several_recipients_are_not_named() -> None:
    two = replace(ENVELOPE, recipients=[Rcpt("c@d.example"), Rcpt("e@d.example")])
    assert b"for <" not in stamped(b"", two).header


def test_control_characters_in_helo() -> None:
    spoiled = replace(ENVELOPE, origin=ORIGIN._replace(helo="a\r\nX-Evil: \x1b"))
    assert stamped(b"", spoiled).header.startswith(b"Received: from a??X-Evil:?? (")
    silent = replace(ENVELOPE, origin=ORIGIN._replace(helo=""))
    assert stamped(b"", silent).header.startswith(b"Received: from unknown (")


@pytest.mark.parametrize(
    ("header", "sender", "recipient", "zone"),
    [
        (b"", "a@b.example", "c@d.example", "default"),
        (b"X-Sending-Zone: bulk\r\n", "a@b.example", "c@d.example", "bulk"),
        (b"X-Sending-Zone: none\r\n", "a@b.example", "c@d.example", "default"),
        (b"x-sending-zone: LOCAL\r\nX-Sending-Zone: bulk\r\n", "a@b.example", "c@d.example", "local"),
        (b"", "a@news.example", "c@d.example", "bulk"),
        (b"", "a@b.example", "c@x.local", "local"),
    ],
)
def test_zones(header: bytes, sender: str, recipient: str, zone: str) -> None:
    """The first rule that matches; routing fields are removed from the header."""
    envelope = replace(ENVELOPE, sender=sender, recipients=[Rcpt(recipient, 4, "rfc822;x")])
    new = stamped(b"Subject: x\r\n" + header, envelope)
    domain = recipient.partition("@")[2]
    assert new.recipients == [NewRecipient(recipient, domain, zone, 4, "rfc822;x")]
    assert b"sending-zone" not in new.header.lower()
    assert new.header.endswith(b"Subject: x\r\n")


def test_the_submission_key_is_removed() -> None:
    """A key that another program finds its bounces by stays."""
    own = b"X-Listmonk-Campaign: c\r\nX-Listmonk-Subscriber: s\r\nSubject: x\r\n"
    new = stamped(b"x-submission-KEY: k\r\n folded\r\n" + own)
    assert new.header.endswith(own)
    assert b"submission" not in new.header
    assert b"folded" not in new.header


def test_fields_that_are_not_for_the_recipients() -> None:
    header = b"Subject: x\r\nBCC: secret@b.example,\r\n other@b.example\r\nReturn-Path: <a@b>\r\nResent-Bcc: c@d\r\nContent-Length: 7\r\nTo: e@f\r\n"
    assert stamped(header).header.endswith(b"\r\nSubject: x\r\nTo: e@f\r\n")
    kept = make_rules(
        CONFIG, ListenerSettings(drop_headers=()), "relay.example", make_router(CONFIG), []
    )
    assert stamped(header, rules=kept).header.endswith(header)


def test_a_long_line_is_folded() -> None:
    header = b"To: " + b", ".join(b"u%05d@x.example" % n for n in range(200)) + b"\r\nSubject: x\r\n"
    folded = stamped(header).header
    assert max(map(len, folded.split(b"\r\n"))) <= 998
    assert folded.replace(b"\r\n ", b" ").endswith(header)


def test_a_mail_loop() -> None:
    assert stamped(b"Received: x\r\n" * 3)
    with pytest.raises(NotAccepted, match=re.escape(LOOP)):
        stamped(b"Received: x\r\n" * 4)


def test_first_value() -> None:
    header = b"X: 1\r\nx: 2\r\nY: a\r\n b\r\n"
    fields, _ = scan(header)
    assert [first_value(header, fields, name) for name in (b"x", b"y", b"z")] == ["1", "a b", ""]


def test_campaign_and_tags() -> None:
    """They are removed from the header, and kept beside it."""
    new = stamped(b"X-Campaign: spring 2026\r\nX-Tags: a, b,\r\n c ,a,\r\nSubject: x\r\n")
    assert (new.campaign, new.tags) == ("spring 2026", ("a", "b", "c"))
    assert b"X-" not in new.header
    assert (stamped(b"Subject: x\r\n").campaign, stamped(b"X-Tags: ,\r\n").tags) == ("", ())


@pytest.mark.parametrize(
    "field",
    [
        b"X-Campaign: " + b"c" * 65,
        b"X-Tags: " + b"t" * 65,
        b"X-Tags: 1,2,3,4,5,6,7,8,9,10,11",
        b"X-Campaign: a\tb",
    ],
)
def test_labels_that_are_too_long_or_too_many(field: bytes) -> None:
    """The message is accepted without them, or refused if the listener says so."""
    new = stamped(field + b"\r\n")
    assert (new.campaign, new.tags, len(new.ignored)) == ("", (), 1)
    assert field.partition(b":")[0].decode() in new.ignored[0]
    with pytest.raises(NotAccepted, match=r"^550 5\.6\.0 .*X-"):
        stamped(field + b"\r\n", rules=RULES._replace(options=MessageOptions(unusable="refuse")))


def test_other_names_and_none() -> None:
    options = MessageOptions(campaign="X-Mailing", tags=None)
    rules = make_rules(
        CONFIG, ListenerSettings(options=options), "relay.example", make_router(CONFIG), []
    )
    new = stamped(b"X-Mailing: c\r\nX-Campaign: other\r\nX-Tags: a\r\n", rules=rules)
    assert (new.campaign, new.tags) == ("c", ())
    assert b"X-Mailing" not in new.header
    assert b"X-Campaign: other\r\nX-Tags: a\r\n" in new.header


def test_an_empty_message_id_is_replaced() -> None:
    """A header has one at most (RFC 5322 section 3.6)."""
    new = stamped(b"Subject: x\r\nMessage-ID:\r\nDate: then\r\n")
    assert new.header.lower().count(b"message-id:") == 1
    assert new.message_id == "<id1@relay.example>"
    assert new.header.endswith(b"Subject: x\r\nDate: then\r\n")
