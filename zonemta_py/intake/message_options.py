"""What a submitter says of a message in header fields and parameters of MAIL: names, times, a priority. Pure.

Source of the parameters: RFC 4865 (HOLDFOR, HOLDUNTIL), RFC 2852 (BY).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from zonemta_py.config.schema import MessageOptions
from zonemta_py.config.units import duration
from zonemta_py.core.errors import NotAccepted
from zonemta_py.queue.format.records import LABEL_MAX, NO_OPTIONS, PRIORITIES, DeliveryOptions
from zonemta_py.smtp.commands import Mail, Refused
from zonemta_py.smtp.encoded_words import decode

TAGS_MAX = 10  # of a message: they are in each of its events
EXPIRE_MAX_MS = 400 * 86_400_000  # from now
TIME_MAX = 200  # characters of a time in a header field
ENCODED_MAX = (
    TAGS_MAX * LABEL_MAX * 16
)  # characters of a field with labels; encoded, a character has 12 and some
SILENT = "silent"


class Labels(NamedTuple):
    """Campaign, tags and times of a message."""

    campaign: str
    tags: tuple[str, ...]
    delivery: DeliveryOptions


NO_LABELS = Labels("", (), NO_OPTIONS)


def of_mail(mail: Mail, options: MessageOptions, now_ms: int) -> DeliveryOptions:
    """What the parameters of MAIL ask for. Raises Refused."""
    if not mail.hold_for_s and not mail.hold_until_ms and not mail.by_mode:
        return NO_OPTIONS
    until_ms = mail.hold_until_ms or (now_ms + mail.hold_for_s * 1000 if mail.hold_for_s else 0)
    if until_ms - now_ms > options.hold_max * 1000:
        raise Refused(f"501 5.5.4 Mail is held for {options.hold_max:.0f} s at most")
    not_before_ms = until_ms if until_ms > now_ms else 0
    if not mail.by_mode:
        return DeliveryOptions(not_before_ms)
    limit_ms = (not_before_ms or now_ms) + mail.by_s * 1000
    if mail.by_mode == "R":
        return DeliveryOptions(not_before_ms, limit_ms)
    return DeliveryOptions(not_before_ms, notify_ms=max(limit_ms, 1))


def of_header(
    options: MessageOptions, values: Mapping[str, str], asked: DeliveryOptions, now_ms: int
) -> Labels:
    """What the removed fields say; ``values``: by lower-case name. ``asked``: by MAIL, which precedes them.

    Raises NotAccepted.
    """
    if not values:
        return Labels("", (), asked) if asked is not NO_OPTIONS else NO_LABELS
    found = {
        name: values[field.lower()]
        for name in ("campaign", "tags", "not_before", "expire", "priority")
        if (field := getattr(options, name)) and field.lower() in values
    }
    if not found:
        return Labels("", (), asked) if asked is not NO_OPTIONS else NO_LABELS
    return Labels(
        _label(options.campaign, _decoded(found.get("campaign", ""))),
        _tags(options.tags, _decoded(found.get("tags", ""))),
        _delivery(options, found, asked, now_ms),
    )


def _decoded(text: str) -> str:
    """``text`` with its encoded words (RFC 2047) decoded; as it is if one is not valid."""
    if len(text) > ENCODED_MAX:
        return text  # refused as too long
    try:
        return decode(text).strip()
    except ValueError:
        return text


def _label(field: str | None, text: str) -> str:
    if len(text) > LABEL_MAX or not text.isprintable():
        raise NotAccepted(
            f"550 5.6.0 A value in {field} is longer than {LABEL_MAX} characters, or not printable"
        )
    return text


def _tags(field: str | None, text: str) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split(",") if tag.strip()))
    if len(tags) > TAGS_MAX:
        raise NotAccepted(f"550 5.6.0 {field} has more than {TAGS_MAX} tags")
    return tuple(_label(field, tag) for tag in tags)


def _delivery(
    options: MessageOptions, found: Mapping[str, str], asked: DeliveryOptions, now_ms: int
) -> DeliveryOptions:
    not_before_ms, expires_ms, silent = asked.not_before_ms, asked.expires_ms, asked.silent
    notify_ms = asked.notify_ms
    if "not_before" in found and not not_before_ms:
        at_ms = _time(options.not_before, found["not_before"], now_ms)
        if at_ms - now_ms > options.hold_max * 1000:
            days = f"{options.hold_max / 86_400:g} days"
            raise NotAccepted(f"550 5.6.0 {options.not_before} is more than {days} from now")
        not_before_ms = at_ms if at_ms > now_ms else 0
        later_ms = max(0, at_ms - now_ms)  # BY counts from the time when it may be sent
        expires_ms, notify_ms = (each and each + later_ms for each in (expires_ms, notify_ms))
    if "expire" in found and not expires_ms:
        text, semicolon, word = found["expire"].partition(";")
        silent = word.strip().lower() == SILENT
        if semicolon and not silent:
            raise NotAccepted(f"550 5.6.0 {options.expire}: '; {SILENT}' may follow the time")
        expires_ms = _time(options.expire, text.strip(), not_before_ms or now_ms)
        if not (not_before_ms or now_ms) < expires_ms <= now_ms + EXPIRE_MAX_MS:
            raise NotAccepted(
                f"550 5.6.0 {options.expire} is before the message may be sent, or too far away"
            )
    priority = found.get("priority", "").lower()
    if priority and priority not in PRIORITIES:
        raise NotAccepted(f"550 5.6.0 {options.priority} is not one of {', '.join(PRIORITIES)}")
    return DeliveryOptions(
        not_before_ms, expires_ms, silent, notify_ms, priority if priority != "normal" else ""
    )


def _time(field: str | None, text: str, from_ms: int) -> int:
    """A duration from ``from_ms``, or a date with a zone (RFC 3339, RFC 5322), as unix ms."""
    try:
        return from_ms + round(duration(text) * 1000)
    except ValueError:
        pass
    for parse in (datetime.fromisoformat, parsedate_to_datetime) if len(text) <= TIME_MAX else ():
        try:
            when = parse(text)
            if when.tzinfo is not None:
                return round(when.timestamp() * 1000)
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    raise NotAccepted(
        f"550 5.6.0 {field} is neither a duration, such as 2h, nor a time, such as 2026-11-24T09:00:00+01:00"
    )


def latest_release(options: MessageOptions, now_ms: int) -> str:
    """The two numbers of the EHLO keyword FUTURERELEASE: seconds, and the latest time (RFC 4865 section 4)."""
    latest = datetime.fromtimestamp(now_ms // 1000 + int(options.hold_max), UTC)
    return f"{int(options.hold_max)} {latest:%Y-%m-%dT%H:%M:%SZ}"
