"""What a submitter asks for in header fields and parameters of MAIL."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.schema import MessageOptions
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.options import NO_LABELS, Labels, latest_release, of_header, of_mail
from zonemta_py.queue.format.records import NO_OPTIONS, DeliveryOptions
from zonemta_py.smtp.commands import Refused, parse_mail

NOW_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
HOUR_MS = 3_600_000
OPTIONS = MessageOptions(unusable="refuse")
IGNORING = MessageOptions()


def asked(*fields: str, of: DeliveryOptions = NO_OPTIONS) -> DeliveryOptions:
    return labels(*fields, of=of).delivery


def labels(*fields: str, of: DeliveryOptions = NO_OPTIONS, options: MessageOptions = OPTIONS) -> Labels:
    values = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    return of_header(options, values, of, NOW_MS)


def mail(parameters: str) -> DeliveryOptions:
    parsed = parse_mail(f"FROM:<a@b.example> {parameters}", extended=True, max_size=1000)
    return of_mail(parsed, OPTIONS, NOW_MS)


@pytest.mark.parametrize(
    ("text", "in_ms"),
    [
        ("2h", 2 * HOUR_MS),
        ("1h30m", 1.5 * HOUR_MS),
        ("PT15M", HOUR_MS / 4),
        ("2027-01-15T10:00:00Z", 2 * HOUR_MS),
        ("2027-01-15T10:00:00+01:00", HOUR_MS),
        ("2027-01-15 10:00:00.5+00:00", 2 * HOUR_MS + 500),
        ("Fri, 15 Jan 2027 10:00:00 +0100", HOUR_MS),
        ("Fri, 15 Jan 2027 09:00:00 GMT", HOUR_MS),
    ],
)
def test_a_time_is_a_duration_or_a_date_with_a_zone(text: str, in_ms: float) -> None:
    assert asked(f"X-Not-Before: {text}") == DeliveryOptions(NOW_MS + int(in_ms))
    assert asked(f"X-Expire: {text}") == DeliveryOptions(expires_ms=NOW_MS + int(in_ms))


def test_a_time_that_is_over_holds_nothing() -> None:
    assert asked("X-Not-Before: 2027-01-15T07:00:00Z") == NO_OPTIONS


def test_it_expires_from_the_time_when_it_is_sent() -> None:
    found = asked("X-Not-Before: 10h", "X-Expire: 6h; Silent")
    assert found == DeliveryOptions(NOW_MS + 10 * HOUR_MS, NOW_MS + 16 * HOUR_MS, silent=True)


@pytest.mark.parametrize(
    ("text", "campaign"),
    [
        ("june", "june"),
        ("=?utf-8?b?5pel5pys6Kqe?=", "\u65e5\u672c\u8a9e"),
        ("=?utf-8?q?sp=C3=A4t?= =?utf-8?q?er?= 2", "sp\u00e4ter 2"),
        ("=?iso-8859-1?q?=E9t=E9?=", "\u00e9t\u00e9"),
        ("=?unknown-9?q?x?=", "=?unknown-9?q?x?="),
        ("=?utf-8?b?not base64?=", "=?utf-8?b?not base64?="),
        ("=?", "=?"),
        ("=?\u00e9?q?abc?=", "=?\u00e9?q?abc?="),
    ],
)
def test_encoded_words_of_a_campaign(text: str, campaign: str) -> None:
    """As mail libraries write names beyond ASCII; what cannot be decoded stays as it is."""
    found = of_header(OPTIONS, {"x-campaign": text, "x-tags": f"a,{text}"}, NO_OPTIONS, NOW_MS)
    assert (found.campaign, found.tags[-1]) == (campaign, campaign)


@given(st.text(max_size=80))
def test_any_text_is_a_campaign_or_refused(text: str) -> None:
    """Also between the marks of an encoded word."""
    for value in (text, f"=?utf-8?q?{text}?=", f"=?utf-8?b?{text}?="):
        try:
            found = of_header(OPTIONS, {"x-campaign": value}, NO_OPTIONS, NOW_MS).campaign
        except NotAccepted:
            continue
        assert found.isprintable()
        assert len(found) <= 64


@pytest.mark.parametrize(
    ("field", "reply"),
    [
        ("X-Not-Before: tomorrow", "X-Not-Before is neither a duration"),
        ("X-Not-Before: 2027-01-15T10:00:00", "X-Not-Before is neither a duration"),  # of which zone?
        ("X-Not-Before: 31d", "X-Not-Before is more than 30 days from now"),
        ("X-Expire: 2027-01-15T07:00:00Z", "X-Expire is before the message may be sent"),
        ("X-Expire: 500d", "X-Expire is too far away"),
        ("X-Expire: 6h; quietly", "X-Expire: '; silent' may follow the time"),
        ("X-Expire: ", "X-Expire is neither"),
        (
            "X-Not-Before: " + "9" * 60_000,
            "X-Not-Before is neither a duration",
        ),  # at once, not in minutes
        ("X-Priority-Class: high", "X-Priority-Class is not one of urgent, normal, nonurgent"),
        ("X-Tags: " + ",".join("abcdefghijk"), "X-Tags has more than 10 tags"),
    ],
)
def test_what_is_refused(field: str, reply: str) -> None:
    """Where a listener says so; where it does not, mail is refused that would leave too early or too late."""
    with pytest.raises(NotAccepted, match=r"^550 5\.6\.0 ") as refused:
        asked(field)
    assert reply in str(refused.value)
    if field.startswith("X-Not-Before") or "before the message" in reply:
        with pytest.raises(NotAccepted, match=r"^550 5\.6\.0 "):
            labels(field, options=IGNORING)
    else:
        assert labels(field, options=IGNORING) == Labels("", (), NO_OPTIONS, (str(refused.value)[10:],))


def test_only_what_cannot_be_used_is_ignored() -> None:
    found = labels(
        "X-Campaign: " + "c" * 65, "X-Tags: a,b", "X-Expire: 2027-12-31", "X-Priority-Class: urgent",
        options=IGNORING, of=DeliveryOptions(notify_ms=NOW_MS + 5),
    )  # fmt: skip
    assert (found.campaign, found.tags) == ("", ("a", "b"))
    assert found.delivery == DeliveryOptions(notify_ms=NOW_MS + 5, priority="urgent")
    assert [text.split()[0] for text in found.ignored] == ["A", "X-Expire"]


@given(st.sampled_from(["X-Not-Before", "X-Expire", "X-Priority-Class", "X-Tags"]), st.text(max_size=60))
def test_any_value_is_taken_or_refused(field: str, text: str) -> None:
    """A number of a date may be one that no calendar has."""
    try:
        found = asked(f"{field}: {text}")
    except NotAccepted as exc:
        assert str(exc).startswith("550 5.6.0 ")
    else:
        assert 0 <= found.not_before_ms < 1e13 and 0 <= found.expires_ms < 1e13


@given(st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", fullmatch=True))
def test_any_date_is_taken_or_refused(text: str) -> None:
    cast(Any, test_any_value_is_taken_or_refused).hypothesis.inner_test("X-Not-Before", text)


def test_priorities() -> None:
    assert asked("X-Priority-Class: Urgent").priority == "urgent"
    assert asked("X-Priority-Class: nonurgent").priority == "nonurgent"
    assert asked("X-Priority-Class: normal") == NO_OPTIONS


def test_without_fields_nothing_is_asked_for() -> None:
    assert of_header(OPTIONS, {"x-sending-zone": "bulk"}, NO_OPTIONS, NOW_MS) is NO_LABELS


# ---- parameters of MAIL


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("SIZE=5", NO_OPTIONS),
        ("HOLDFOR=3600", DeliveryOptions(NOW_MS + HOUR_MS)),
        ("HOLDFOR=0", NO_OPTIONS),
        ("holduntil=2027-01-15T10:00:00Z", DeliveryOptions(NOW_MS + 2 * HOUR_MS)),
        ("HOLDUNTIL=2020-01-15T10:00:00Z", NO_OPTIONS),
        ("BY=120;R", DeliveryOptions(expires_ms=NOW_MS + 120_000)),
        ("BY=+120;nT", DeliveryOptions(notify_ms=NOW_MS + 120_000)),
        ("BY=-1;N", DeliveryOptions(notify_ms=NOW_MS - 1000)),
        ("HOLDFOR=3600 BY=60;R", DeliveryOptions(NOW_MS + HOUR_MS, NOW_MS + HOUR_MS + 60_000)),
    ],
)
def test_parameters(parameters: str, expected: DeliveryOptions) -> None:
    assert mail(parameters) == expected


@pytest.mark.parametrize(
    "parameters",
    [
        "HOLDFOR=1 HOLDUNTIL=2027-01-15T10:00:00Z", "HOLDFOR=1h", "HOLDFOR=-1", "HOLDFOR", "HOLDFOR=1234567890",
        "HOLDUNTIL=soon", "HOLDUNTIL", "HOLDUNTIL=2027-01-15T10:00:00", "HOLDUNTIL=2027-13-15T10:00:00Z",
        "HOLDFOR=2592001", "BY=0;R", "BY=-5;R", "BY=5", "BY=5;X", "BY=1e3;N", "BY",
    ],
)  # fmt: skip
def test_parameters_that_are_refused(parameters: str) -> None:
    with pytest.raises(Refused, match=r"^501 5\.5\.4 "):
        mail(parameters)


def test_the_parameters_precede_the_fields() -> None:
    of = mail("HOLDFOR=3600 BY=60;R")
    assert asked("X-Not-Before: 2h", "X-Expire: 1h", of=of) == of


def test_what_ehlo_says() -> None:
    assert latest_release(OPTIONS, NOW_MS) == "2592000 2027-02-14T08:00:00Z"
