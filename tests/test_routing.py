"""Routing: first match wins, else default."""

from pathlib import Path

import pytest

from zonemta_py.config.load import parse_config
from zonemta_py.config.tenants import Tenant, TenantSettings
from zonemta_py.core.errors import NotAccepted
from zonemta_py.routing import make_router, one_zone

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


@pytest.mark.parametrize(
    ("value", "unknown"),
    [("bulk", ""), (" BULK ", ""), ("", ""), ("Nowhere", "nowhere"), ("n\x1b[2Jé", "n?[2j\\xe9")],
)
def test_a_zone_that_there_is_not(value: str, unknown: str) -> None:
    assert ROUTER.unknown_zone({"x-sending-zone": value, "x-vip": "yes"}) == unknown


def test_headers_to_take_out() -> None:
    assert ROUTER.headers == {b"x-sending-zone", b"x-vip"}


@pytest.mark.parametrize(
    ("zones", "recipient", "headers", "zone"),
    [
        (None, "b.example", {"x-sending-zone": "bulk"}, "bulk"),
        (("vip", "bulk"), "b.example", {"x-sending-zone": "BULK"}, "bulk"),
        (("vip", "default"), "a.example.org", {}, "default"),
        (("vip", "internal"), "a.example.org", {}, "vip"),
        (("bulk",), "a.example.org", {}, "bulk"),
        (("bulk",), "b.example", {}, "bulk"),
    ],
)
def test_zones_of_a_tenant(
    zones: tuple[str, ...] | None, recipient: str, headers: dict[str, str], zone: str
) -> None:
    """A rule that leads elsewhere is skipped; the first zone stands for the default one."""
    tenant = Tenant("acme", TenantSettings(zones=zones))
    assert ROUTER.route(recipient, "a.example", "", headers, tenant) == zone


@pytest.mark.parametrize(
    "headers", [{"x-sending-zone": "internal"}, {"x-sending-zone": "nowhere"}, {"x-vip": "yes"}]
)
def test_a_zone_of_others_is_refused(headers: dict[str, str]) -> None:
    """So is one that does not exist; also when the tenant may use all."""
    tenant = Tenant("acme", TenantSettings(zones=("bulk",)))
    with pytest.raises(NotAccepted, match=r"^550 5\.7\.1 Tenant acme may not use zone '"):
        ROUTER.route("b.example", "a.example", "", headers, tenant)
    with pytest.raises(NotAccepted):
        one_zone("vip").route("b.example", "a.example", "", {}, tenant)
    everywhere = Tenant("acme", TenantSettings())
    with pytest.raises(NotAccepted, match="nowhere"):
        ROUTER.route("b.example", "a.example", "", {"x-sending-zone": "nowhere"}, everywhere)
