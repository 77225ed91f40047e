"""Replies to failures: their classes, kinds and templates."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.events.replies import WORDS, ReplyTemplates, class_of, masked, mine_templates
from zonemta_py.smtp.reply import make_reply
from zonemta_py.smtp.reply_class import GONE, ReplyClass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


REPLIES = (
    "550 <x@y.example> no such user",
    "10.0.0.1 is listed",
    "try 4 times, id abcdefg12",
    "see http://a.example/b c",
    "",
    "ünïcode 12",
)


def test_spark_masks_as_python_does(spark: "SparkSession") -> None:
    from pyspark.sql import functions as F

    from zonemta_py.pipeline.events.rows import reply_kind

    rows = (
        spark.createDataFrame([(text,) for text in REPLIES], "reply string")
        .select("reply", reply_kind(F.col("reply")).alias("kind"))
        .collect()
    )
    assert {row["reply"]: row["kind"] for row in rows} == {text: masked(text) for text in REPLIES}


@pytest.mark.parametrize(
    ("reply", "reply_class"),
    [
        (("policy", "rcpt", "550", "5.1.1", "no such user"), "policy"),
        (("", "rcpt", "550", "5.1.1", "The email account that you tried to reach does not exist."), "invalid_recipient"),
        ((None, None, "554", None, "delivery error: This user doesn't have a yahoo.com account"), "invalid_recipient"),
        (("", "rcpt", "552", "", "Mailbox full"), "mailbox_full"),
        (("", "rcpt", "450", "4.7.1", "Client host rejected: Greylisted, see http://x"), "greylisted"),
        (("", "connect", "421", "4.7.0", "Too many concurrent connections"), "connection_limited"),
        (("", "connect", "0", "4.4.1", "connection timed out"), "no_answer"),
        (("", "connect", "0", "5.1.2", "no such domain"), "bad_domain"),
        (("", "rcpt", "550", "5.1.8", "Sender address rejected: Domain not found"), "invalid_sender"),
    ],
)  # fmt: skip
def test_classes(reply: tuple[str | None, ...], reply_class: str) -> None:
    given, phase, code, status, text = reply
    assert class_of(given, phase, code, status, text) == reply_class


def test_a_report_has_words_for_every_class() -> None:
    assert set(WORDS) == set(ReplyClass)


@given(st.integers(0, 599), st.text(max_size=10), st.text(max_size=200))
def test_any_reply_has_a_class(code: int, status: str, text: str) -> None:
    assert class_of("", "rcpt", code, status, text) in list(ReplyClass)


@pytest.mark.parametrize(
    ("text", "is_gone"),
    [
        ("553 5.1.8 Sender address rejected: Domain not found", False),
        ("553 5.1.8 <news@sender.example>: Domain of sender address news@sender.example does not exist", False),
        ("550 5.1.0 <news@sender.example>: Sender address rejected: User unknown in relay recipient table", False),
        ("550 5.7.1 Message rejected: sender domain does not exist", False),
        ("550 5.7.1 Your account is disabled for sending", False),
        ("550 5.7.1 Unauthenticated email from x.example is not accepted: no such account authorised", False),
        ("550 5.4.1 Recipient address rejected: Access denied. AS(201806281)", True),
        ("550 #5.1.0 Address rejected", True),
        ("550 5.1.1 The email account that you tried to reach does not exist", True),
    ],
)  # fmt: skip
def test_recipients_that_may_be_suppressed(text: str, is_gone: bool) -> None:
    """In events without a class, and in reports that came by mail, which have no phase."""
    reply = make_reply(int(text[:3]), text[4:])
    for phase in ("rcpt", "dot", ""):
        assert (class_of(None, phase, reply.code, reply.status, reply.text) in GONE) == is_gone


def test_masked() -> None:
    reply = "<a.b@x.example>: try from 10.1.2.3 again in 300 seconds, see https://h.example/x?y=1 (id 4Ab9Zx-77q1)"
    assert masked(reply) == "<address>: try from <ip> again in <n> seconds, see <url> (id <id>)"


def test_templates() -> None:
    """Similar replies share a template, with <*> for words that differ; the number of words is the same."""
    replies = [
        "user alice unknown in table virtual",
        "user bob unknown in table virtual",
        "user carol unknown in table hosts",
        "greylisted, come back later today please",
        "no",
    ]
    found = mine_templates(replies)
    assert {found[reply] for reply in replies[:3]} == {"user <*> unknown in table <*>"}
    assert found[replies[3]] == replies[3]
    assert found["no"] == "no"
    assert ReplyTemplates().of("never seen") == "never seen"


@given(st.lists(st.text(max_size=60), max_size=30))
def test_mining_is_total(replies: list[str]) -> None:
    """Every reply has a template with the same number of words; the result is deterministic."""
    found = mine_templates(replies)
    assert set(found) == set(replies)
    assert all(len(t.split()) == len(k.split()) for k, t in found.items())
    assert mine_templates(replies) == found
