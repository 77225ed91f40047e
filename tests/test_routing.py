"""Routing: first match wins, else default."""

from pathlib import Path

import pytest

from zonemta_py.config.load import parse_config
from zonemta_py.routing import make_router

ROUTER = make_router(
    parse_config(
        "zones: {bulk: {}, internal: {}, vip: {}}\n"
        "routing:\n"
        "  - {header: X-Sending-Zone}\n"
        "  - {header: X-Vip, zone: vip}\n"
        "  - {sender_domain: 'news.*', zone: bulk}\n"
        "  - {recipient_domain: '*.example.org', zone: bulk}\n"
        "  - {source: 10.0.0.0/8, zone: internal}\n"
        "  - {source: '2001:db8::/32', zone: internal}\n",
        Path("r.yaml"),
    )
)


@pytest.mark.parametrize(
    ("recipient", "sender", "source", "headers", "zone"),
    [
        ("b.example", "a.example", "192.0.2.1", {}, "default"),
        ("b.example", "a.example", "192.0.2.1", {"x-sending-zone": "BULK"}, "bulk"),
        ("b.example", "a.example", "10.1.2.3", {"x-sending-zone": "nowhere"}, "internal"),
        ("b.example", "a.example", "192.0.2.1", {"x-vip": "yes"}, "vip"),
        ("b.example", "news.example", "10.1.2.3", {}, "bulk"),
        ("a.example.org", "a.example", "192.0.2.1", {}, "bulk"),
        ("example.org", "a.example", "192.0.2.1", {}, "default"),
        ("b.example", "", "10.1.2.3", {}, "internal"),
        ("b.example", "", "2001:db8::1", {}, "internal"),
        ("b.example", "", "", {}, "default"),
    ],
)
def test_route(recipient: str, sender: str, source: str, headers: dict[str, str], zone: str) -> None:
    assert ROUTER.route(recipient, sender, source, headers) == zone


def test_headers_to_take_out() -> None:
    assert ROUTER.headers == {b"x-sending-zone", b"x-vip"}
