"""Which mail of a configuration leaves from which pool, and from which part of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from zonemta_py.config.load import parse_config
from zonemta_py.core.model import PoolKey
from zonemta_py.open_queue import mail_pools
from zonemta_py.queue.format.records import FORMAT, TENANT_FLOW, RecipientRecord
from zonemta_py.queue.ready.streams import ONE_POOL, MailPools

A, B, C = "192.0.2.1", "192.0.2.2", "192.0.2.3"
ZONES = {
    "default": {},
    "moved": {"fallback_pool": "several", "fallback_after": 2},
    "local": {"transport": "lmtp", "smarthost": "unix:/run/lmtp"},
}


def pools(directory: Path, *, several: tuple[str, ...] = (B, C), **changes: Any) -> MailPools:
    whole = {
        "zones": ZONES,
        "pools": {
            "default": [{"address": A}],
            "several": [{"address": each} for each in several],
        },
        "tenants": {"acme": {"users": ["ann"], "domains": ["acme.example"], "pool": "several"}},
    } | changes
    return mail_pools(parse_config(yaml.safe_dump(whole), directory / "z.yaml"))


def record(
    attempts: int = 0, source: str = "", reply_class: str = "", *, flow: str = ""
) -> RecipientRecord:
    reply = (451, "4.7.1", "later", 0, "", source, reply_class) if attempts else (0, "", "", 0, "")
    return RecipientRecord(FORMAT, 0, "d.example", flow, attempts, 0, 0, 0, *reply)


@pytest.mark.parametrize(
    ("zone", "after", "expected"),
    [
        ("default", record(), PoolKey("")),
        ("default", record(1, B, "mailbox_full"), PoolKey("")),
        ("default", record(1, B, "greylisted"), PoolKey("", B)),
        ("default", record(1, B, "blocked"), PoolKey("", B, True)),
        ("default", record(1, C, "greylisted")._replace(attempts=0), PoolKey("", C)),  # a rule did not count it
        ("moved", record(1, C, "blocked")._replace(attempts=0), PoolKey("several", C, True)),
        ("default", record(1, A, "greylisted"), PoolKey("")),  # that pool has one address
        ("moved", record(1, A, "greylisted"), PoolKey("")),
        ("moved", record(1, A, "blocked"), PoolKey("several")),
        ("moved", record(2, B, "blocked"), PoolKey("several", B, True)),
        ("moved", record(2, C, "greylisted"), PoolKey("several", C)),
        ("local", record(1, B, "greylisted"), PoolKey("")),
        ("default", record(flow=f"{TENANT_FLOW}acme"), PoolKey("several")),
        ("default", record(1, C, "greylisted", flow=f"{TENANT_FLOW}acme"), PoolKey("several", C)),
        ("default", record(1, A, "greylisted", flow=f"{TENANT_FLOW}acme"), PoolKey("several")),
        ("local", record(flow=f"{TENANT_FLOW}acme"), PoolKey("")),
    ],
)  # fmt: skip
def test_from_where_mail_leaves(
    directory: Path, zone: str, after: RecipientRecord, expected: PoolKey
) -> None:
    found = pools(directory)
    part = found.pool_key(zone, "d.example", after)
    assert part == expected
    assert found.share_divisor(part) == (2 if expected.address else 1)


def test_what_a_reload_changes(directory: Path) -> None:
    """The streams of all mail are sorted again if that may have other ones."""
    before = pools(directory)
    assert before == pools(directory)
    assert before != pools(directory, several=(B, "192.0.2.4"))
    assert before != pools(directory, zones={**ZONES, "moved": {}})
    one: dict[str, Any] = {
        "pools": {"default": [{"address": A}]},
        "zones": {"default": {}},
        "tenants": {},
    }
    assert pools(directory, **one) is ONE_POOL
