"""Events as the accounting of other relays has them, for programs that read those. Pure.

PowerMTA's accounting file: CSV with the columns of its default header; KumoMTA's log: JSON lines. What the event log does
not have is empty. Sources: the user guides of both; the classes of replies are those of ``smtp.reply_class``.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from zonemta_py.smtp.reply_class import NAMES, Names, ReplyClass

Record = Mapping[str, Any]

POWERMTA_COLUMNS = (
    "type", "timeLogged", "timeQueued", "orig", "rcpt", "orcpt", "dsnAction", "dsnStatus", "dsnDiag", "dsnMta", "bounceCat",
    "srcType", "srcMta", "dlvType", "dlvSourceIp", "dlvDestinationIp", "dlvEsmtpAvailable", "dlvSize", "vmta", "jobId", "envId",
    "queue", "vmtaPool",
)  # fmt: skip

# By event: PowerMTA's type and action, KumoMTA's type.
_TYPES = {
    "accepted": ("r", "", "Reception"),
    "delivered": ("d", "relayed", "Delivery"),
    "deferred": ("t", "delayed", "TransientFailure"),
    "requeued": ("t", "delayed", "TransientFailure"),
    "bounced": ("b", "failed", "Bounce"),
    "expired": ("b", "failed", "Expiration"),
    "lapsed": ("b", "failed", "Expiration"),
    "deleted": ("b", "failed", "AdminBounce"),
}
EVENTS = tuple(_TYPES)
KEPT_MAX = 100_000  # identities of records that are remembered


def without_repeats(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each record once, of those that are near each other: a crash, or a segment sealed meanwhile, repeats the last ones."""
    seen: dict[tuple[str, int, int], None] = {}
    for record in records:
        identity = record["node"], record["seq"], record["position"]
        if identity in seen:
            continue
        seen[identity] = None
        if len(seen) > KEPT_MAX:
            del seen[next(iter(seen))]
        yield record


def powermta_rows(record: Record) -> Iterator[dict[str, str]]:
    """The rows of one event by column: one, of ``accepted`` one for each recipient, of events that PowerMTA lacks none."""
    if record["event"] not in _TYPES:
        return
    kind, action, _ = _TYPES[record["event"]]
    created = _local_time(_created_ms(record))
    row = dict.fromkeys(POWERMTA_COLUMNS, "") | {
        "type": kind, "timeLogged": _local_time(record["time_ms"]), "orig": record["sender"], "jobId": record["campaign"],
    }  # fmt: skip
    if kind == "r":
        row |= {
            "timeQueued": created, "srcType": "smtp", "srcMta": _host(record["helo"], record["client_ip"]),
            "dlvSize": str(record["size_bytes"]),
        }  # fmt: skip
        for each in record["recipients"]:
            domain, zone = each["recipient"].rpartition("@")[2], each["zone"]
            yield row | {"rcpt": each["recipient"], "queue": f"{domain}/{zone}", "vmtaPool": zone}
        return
    code, status, reply = record.get("code", 0), record.get("status", ""), record.get("reply", "")
    source = record.get("source_ip", "")
    yield row | {
        "timeQueued": created, "rcpt": record["recipient"], "dsnAction": action,
        "dsnStatus": status, "dsnDiag": " ".join(filter(None, (f"smtp;{code}", status, reply))) if code else reply,
        "dsnMta": _host(record.get("mx", ""), record.get("mx_ip", "")), "bounceCat": "" if kind == "d" else names_of(record).powermta,
        "dlvType": "smtp" if record.get("mx_ip") else "", "dlvSourceIp": source, "dlvDestinationIp": record.get("mx_ip", ""), "vmta": source,
        "queue": f"{record['domain']}/{record['zone']}", "vmtaPool": record["zone"],
    }  # fmt: skip


def kumomta_record(record: Record) -> dict[str, Any] | None:
    """The record of one event, its fields in KumoMTA's order; None for an event that KumoMTA lacks."""
    if record["event"] not in _TYPES:
        return None
    kind = _TYPES[record["event"]][2]
    if record.get("phase") == "operator":
        kind = "AdminBounce"
    if record["event"] == "accepted":
        return _reception(record)
    provider, source = record.get("provider", ""), record.get("source_ip", "")
    found = {
        "type": kind,
        "id": record["message"],
        "sender": record["sender"],
        "recipient": record["recipient"],
        "queue": _scheduled_queue(record["campaign"], record["tenant"], record["domain"]),
        "site": f"{source or record['zone']}->{provider or record['domain']}",
        "size": 0,
        "response": {
            "code": record.get("code", 0), "enhanced_code": _enhanced(record.get("status", "")),
            "content": record.get("reply", ""), "command": "." if record.get("phase") == "dot" else None,
        },
        "peer_address": {"name": record["mx"], "addr": record["mx_ip"]} if record.get("mx_ip") else None,
        **_times(record),
        "num_attempts": record["attempt"],
        "bounce_classification": "Uncategorized" if kind == "Delivery" else names_of(record).kumomta,
        "egress_pool": record["zone"],
        "egress_source": source or None,
        "source_address": {"address": source} if source else None,
        "feedback_report": None,
        "meta": {"tenant": record["tenant"], "campaign": record["campaign"]},
        "headers": {},
        "delivery_protocol": "ESMTP",
        "reception_protocol": None,
        "nodeid": record["node"],
    }  # fmt: skip
    return found | ({"provider_name": provider} if provider else {})


def _reception(record: Record) -> dict[str, Any]:
    recipients = [each["recipient"] for each in record["recipients"]]
    domain = recipients[0].rpartition("@")[2]
    return {
        "type": "Reception",
        "id": record["message"],
        "sender": record["sender"],
        "recipient": recipients[0] if len(recipients) == 1 else recipients,
        "queue": _scheduled_queue(record["campaign"], record["tenant"], domain),
        "site": "",
        "size": record["size_bytes"],
        "response": {"code": 250, "enhanced_code": _enhanced("2.0.0"), "content": "OK", "command": None},
        "peer_address": {"name": record["helo"], "addr": record["client_ip"]},
        **_times(record),
        "num_attempts": 0,
        "bounce_classification": "Uncategorized",
        "egress_pool": None,
        "egress_source": None,
        "source_address": None,
        "feedback_report": None,
        "meta": {"tenant": record["tenant"], "campaign": record["campaign"]},
        "headers": {"Message-Id": record["message_id"]},
        "delivery_protocol": None,
        "reception_protocol": "ESMTP",
        "nodeid": record["node"],
    }


def names_of(record: Record) -> Names:
    """KumoMTA's and PowerMTA's names of the class of a failure; those of ``other`` for a class of another version."""
    name = record.get("class", "")
    return NAMES[ReplyClass(name) if name in _CLASSES else ReplyClass.OTHER]


_CLASSES = frozenset(ReplyClass)


def _scheduled_queue(campaign: str, tenant: str, domain: str) -> str:
    """``campaign:tenant@domain`` without the parts that are empty."""
    name = f"{tenant}@{domain}" if tenant else domain
    if campaign:
        return f"{campaign}:{name}" if tenant else f"{campaign}:@{name}"
    return name


def _enhanced(status: str) -> dict[str, int] | None:
    parts = status.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    return dict(zip(("class", "subject", "detail"), map(int, parts), strict=True))


def _host(name: str, ip: str) -> str:
    return f"{name} ({ip})" if name and ip else name or ip


def _local_time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S+0000}"


def _created_ms(record: Record) -> int:
    """The time of the message's receipt, from its id: the same in all of its records."""
    return int(record["message"][:12], 16)


def _times(record: Record) -> dict[str, Any]:
    time_ms, created_ms = record["time_ms"], _created_ms(record)
    return {
        "timestamp": time_ms // 1000, "event_time": _rfc3339(time_ms),
        "created": created_ms // 1000, "created_time": _rfc3339(created_ms),
    }  # fmt: skip


def _rfc3339(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
