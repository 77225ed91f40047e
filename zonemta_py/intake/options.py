"""Options of a message from header fields and parameters of MAIL: names, times, a priority. Pure.

Source of the parameters: RFC 4865 (HOLDFOR, HOLDUNTIL), RFC 2852 (BY).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar

from zonemta_py.config.schema import MessageOptions
from zonemta_py.config.values import duration
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
REFUSED = "550 5.6.0 "

T = TypeVar("T")


class TooLate(NotAccepted):
    """The message must not be sent any more."""


class Labels(NamedTuple):
    """Campaign, tags and times of a message; ``ignored``: why fields could not be used."""

    campaign: str
    tags: tuple[str, ...]
    delivery: DeliveryOptions
    ignored: tuple[str, ...] = ()


NO_LABELS = Labels("", (), NO_OPTIONS)


def of_mail(mail: Mail, options: MessageOptions, now_ms: int) -> DeliveryOptions:
    """The options in the parameters of MAIL. Raises Refused."""
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
    """The options in the removed fields; ``values``: by lower-case name. ``asked``: by MAIL, which precedes them.

    A value that cannot be used is ignored, unless ``options`` say otherwise. Not so a time to wait for, or a time that is over:
    mail that has left too early or too late cannot be called back. Raises NotAccepted.
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
    ignored: list[str] = []

    def use(name: str, parse: Callable[[str], T], without: T) -> T:
        try:
            return parse(found[name]) if name in found else without
        except TooLate:
            raise
        except NotAccepted as exc:
            if options.unusable == "refuse":
                raise
            ignored.append(str(exc).removeprefix(REFUSED))
            return without

    campaign = use("campaign", lambda text: _label(options.campaign, _decoded(text)), "")
    no_tags: tuple[str, ...] = ()
    tags = use("tags", lambda text: _tags(options.tags, _decoded(text)), no_tags)
    delivery = _not_before(options, found.get("not_before"), asked, now_ms)
    if not asked.expires_ms:
        delivery = use("expire", lambda text: _expires(options, text, delivery, now_ms), delivery)
    priority = use("priority", lambda text: _priority(options, text), "")
    return Labels(campaign, tags, delivery._replace(priority=priority), tuple(ignored))


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
            f"{REFUSED}A value in {field} is longer than {LABEL_MAX} characters, or not printable"
        )
    return text


def _tags(field: str | None, text: str) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split(",") if tag.strip()))
    if len(tags) > TAGS_MAX:
        raise NotAccepted(f"{REFUSED}{field} has more than {TAGS_MAX} tags")
    return tuple(_label(field, tag) for tag in tags)


def _not_before(
    options: MessageOptions, text: str | None, asked: DeliveryOptions, now_ms: int
) -> DeliveryOptions:
    """``asked`` with the time before which the message is not sent, if only a field has it."""
    if text is None or asked.not_before_ms:
        return asked
    at_ms = _time(options.not_before, text, now_ms)
    if at_ms - now_ms > options.hold_max * 1000:
        days = f"{options.hold_max / 86_400:g} days"
        raise NotAccepted(f"{REFUSED}{options.not_before} is more than {days} from now")
    later_ms = max(0, at_ms - now_ms)  # BY counts from the time when it may be sent
    expires_ms, notify_ms = (each and each + later_ms for each in (asked.expires_ms, asked.notify_ms))
    return asked._replace(
        not_before_ms=at_ms if at_ms > now_ms else 0, expires_ms=expires_ms, notify_ms=notify_ms
    )


def _expires(
    options: MessageOptions, text: str, delivery: DeliveryOptions, now_ms: int
) -> DeliveryOptions:
    time, semicolon, word = text.partition(";")
    silent = word.strip().lower() == SILENT
    if semicolon and not silent:
        raise NotAccepted(f"{REFUSED}{options.expire}: '; {SILENT}' may follow the time")
    begin_ms = delivery.not_before_ms or now_ms
    expires_ms = _time(options.expire, time.strip(), begin_ms)
    if expires_ms <= begin_ms:
        raise TooLate(f"{REFUSED}{options.expire} is before the message may be sent")
    if expires_ms > now_ms + EXPIRE_MAX_MS:
        raise NotAccepted(f"{REFUSED}{options.expire} is too far away")
    return delivery._replace(expires_ms=expires_ms, silent=silent)


def _priority(options: MessageOptions, text: str) -> str:
    priority = text.lower()
    if priority and priority not in PRIORITIES:
        raise NotAccepted(f"{REFUSED}{options.priority} is not one of {', '.join(PRIORITIES)}")
    return priority if priority != "normal" else ""


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
        f"{REFUSED}{field} is neither a duration, such as 2h, nor a time, such as 2026-11-24T09:00:00+01:00"
    )


def latest_release(options: MessageOptions, now_ms: int) -> str:
    """The two numbers of the EHLO keyword FUTURERELEASE: seconds, and the latest time (RFC 4865 section 4)."""
    latest = datetime.fromtimestamp(now_ms // 1000 + int(options.hold_max), UTC)
    return f"{int(options.hold_max)} {latest:%Y-%m-%dT%H:%M:%SZ}"
