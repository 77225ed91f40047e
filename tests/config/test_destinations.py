"""Settings by destination: the first item that matches, on top of the values of its zone; and their names."""

from pathlib import Path
from typing import Any

import pytest

from zonemta_py.config.load import load_config, parse_config, to_yaml
from zonemta_py.config.plain import plain_values
from zonemta_py.config.zones import DestinationTable, Zone
from zonemta_py.core.errors import ConfigError

HERE = Path("/etc/zonemta/zonemta.yaml")
ZONES = """
pools: {other: [{}]}
zones:
  default:
    connections: 60
    destinations:
      - {domains: ["*.example", gmail.com], connections: 2, tls: required, retry: {warn_after: 1h}}
      - {domains: [via.test, "*"], smarthost: ["mx:a.example", "b.example:26"]}
  bulk:
    pool: other
    retry: {give_up_after: 1d}
  own: {destinations: [{domains: [gmail.com], recipients_per_transaction: 7}]}
  smarthost: {smarthost: 127.0.0.1:25, connections_per_domain: 3, destinations: []}
"""


def table(zone: str, text: str = ZONES) -> DestinationTable:
    return DestinationTable(parse_config(text, HERE).zones[zone])


def settings(zone: str, domain: str) -> Zone:
    found = table(zone)
    return found.settings(found.name_of(domain))


def test_the_first_item_that_matches_counts() -> None:
    for domain in ("gmail.com", "a.example", "b.a.example"):
        found = settings("default", domain)
        assert (found.connections_per_domain, found.tls, found.retry.warn_after) == (2, "required", 3600)
        assert found.smarthost == ()
        assert table("default").name_of(domain) == domain
    for domain in ("example", "mail.gmail.com", "via.test", "[192.0.2.1]"):
        found = settings("default", domain)
        assert [str(host) for host in found.smarthost] == ["mx:a.example:25", "b.example:26"]
        assert found.connections_per_domain == 60, "to smarthosts: all of the zone"
        assert table("default").name_of(domain) == "*:via.test"


def test_items_are_inherited_on_top_of_the_values_of_a_zone() -> None:
    found = settings("bulk", "gmail.com")
    assert (found.pool, found.retry.give_up_after, found.retry.warn_after) == ("other", 86400, 3600)
    assert settings("own", "gmail.com").recipients_per_transaction == 7
    assert settings("own", "gmail.com").connections_per_domain == 20
    assert settings("own", "a.example").tls == "opportunistic", "it has items of its own"


def test_a_zone_with_a_smarthost() -> None:
    found = table("smarthost")
    assert found.name_of("gmail.com") == found.name_of("a.example") == "*"
    assert found.settings("*").connections_per_domain == 60


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, "destinations.0..domains: at least one domain is needed"),
        ({"domains": ["A.example"]}, "found 'A.example', expected a domain in lower-case A-labels"),
        ({"domains": ["*x.example"]}, "expected a domain"),
        ({"domains": ["a.example", "a.example"]}, "'a.example' appears twice"),
        ({"domains": ["*"], "connections": 0}, "found 0, allowed: 1 to 10000"),
        ({"domains": ["*"], "rate": "1/s"}, "unknown key; did you mean 'retry'|unknown key"),
        ({"domains": ["*"], "pool": "none"}, "destinations.0..pool: no pool 'none'"),
        ({"domains": ["*"], "tls": "implicit"}, "implicit needs a smarthost"),
        ({"domains": ["*"], "smarthost": "unix:/run/lmtp"}, "a Unix socket needs transport: lmtp"),
        ({"domains": ["*"], "smarthost": "unix:run/lmtp"}, "an absolute path"),
        ({"domains": ["*"], "smarthost": "mx:"}, "expected host:port, mx:name or unix:/path"),
        ({"domains": ["*"], "smarthost_auth": {"username": "u"}}, "needs a smarthost"),
        ({"domains": ["*"], "timeouts": {"dot": "0s"}}, "destinations.0..timeouts.dot: must be longer"),
        ({"domains": ["*"], "retry": {"delays": []}}, "destinations.0..retry.delays: at least one"),
    ],
)
def test_an_item_that_is_not_usable(item: dict[str, Any], expected: str) -> None:
    text = to_yaml({"zones": {"default": {"destinations": [item]}}})
    with pytest.raises(ConfigError, match=expected):
        parse_config(text, HERE)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        ZONES,
        "zones: {default: {rate: 90/m, transport: lmtp, smarthost: 'unix:/run/lmtp', retry: {delays: [1m30s, 250ms]}}}",
        "events: {keep: 5000001B}\nzones: {default: {rate: 5/7d, timeouts: {idle: 1.5ms}}}",
        "events: {keep: 90d | 50GiB}\nadmin: {address: '[::1]:8125'}\nprocesses: {senders: 2}\n"
        "peers: {mx.a.example: {starttls: off}, '*.b.example': {pipelining: false}}",
        "listeners: [{max_message_size: 1000001}]\nresolver: {nameservers: [192.0.2.53]}",
    ],
)
def test_a_configuration_as_plain_values_is_the_same(text: str) -> None:
    config = parse_config(text, HERE)
    again = parse_config(to_yaml(plain_values(config)), HERE)
    assert plain_values(again) == plain_values(config)
    assert again.zones == config.zones
    assert (again.listeners, again.events, again.peers) == (
        config.listeners,
        config.events,
        config.peers,
    )


def test_the_reference_file_is_the_default() -> None:
    path = Path(__file__).parents[2] / "config/zonemta.yaml"
    assert plain_values(load_config(path)) == plain_values(parse_config("{}", path.absolute()))
