"""Configurations and the errors of wrong ones."""

import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.load import load_config, parse_config
from zonemta_py.config.schema import Config, ListenerTls
from zonemta_py.config.tenants import Tenants
from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import ExponentialRetry, Retry, Zone
from zonemta_py.core.errors import ConfigError

HERE = Path("/etc/zonemta/z.yaml")


def test_empty_is_all_defaults() -> None:
    """Every key is optional."""
    assert parse_config("", HERE).zones == Config().zones
    assert parse_config("{}", HERE).listeners[0].address == HostPort("127.0.0.1", 2525)


def test_shipped_file_is_the_defaults() -> None:
    """config/zonemta.yaml holds every key at its default."""
    path = Path(__file__).parents[2] / "config/zonemta.yaml"
    shipped, default = load_config(path), parse_config("", path)
    assert shipped == default


def test_container_file_is_valid() -> None:
    """The configuration of the container image."""
    config = load_config(Path(__file__).parents[2] / "config/docker.yaml")
    assert config.queue.directory == Path("/var/lib/zonemta/queue")


def test_zones_inherit_from_default() -> None:
    """A zone inherits from zones.default, also inside its sections, in any order."""
    config = parse_config(
        "zones:\n  bulk: {connections: 7, retry: {give_up_after: 1d}}\n"
        "  default: {connections_per_domain: 3, retry: {delays: [1m]}}\n",
        HERE,
    )
    bulk = config.zones["bulk"]
    assert (bulk.connections, bulk.connections_per_domain) == (7, 3)
    assert (bulk.retry.delays, bulk.retry.give_up_after) == ((60.0,), 86400.0)
    assert config.zones["default"].connections == Zone().connections


def test_null_means_inherited() -> None:
    """``bulk:`` without a value is a zone like the default."""
    config = parse_config("zones:\n  default: {connections: 7}\n  bulk:\nqueue:\n", HERE)
    assert config.zones["bulk"].connections == 7


def test_values() -> None:
    """Networks, relative paths, null and lists."""
    config = parse_config(
        "listeners: [{address: '[::1]:0', trusted_networks: [10.0.0.1/8, 1:2:3:4:5:6:7:8]}]\n"
        "queue: {directory: q}\nevents: {directory: /abs}\nresolver: {nameservers: [127.0.0.1:5353, 192.0.2.53]}\n"
        "zones: {default: {rate: 10/s, retry: {warn_after: null}}}\n",
        HERE,
    )
    networks = (ip_network("10.0.0.0/8"), ip_network("1:2:3:4:5:6:7:8"))  # YAML: a number to base 60
    assert config.listeners[0].trusted_networks == networks
    assert config.queue.directory == Path("/etc/zonemta/q")
    assert config.events.directory == Path("/abs")
    assert config.resolver.nameservers == (HostPort("127.0.0.1", 5353), HostPort("192.0.2.53", 53))
    assert config.zones["default"].retry.warn_after is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zones:\n  bulk:\n    conections: 5\n", "z.yaml:3: zones.bulk.conections: unknown key; did you mean 'connections'?"),
        ("zones:\n  default:\n    tls: dane\n", "z.yaml:3: zones.default.tls: 'dane' is not available in this version"),
        ("queue: {store: s3}", "queue.s3.bucket: store: s3 needs a bucket"),
        ("queue: {shared: {name: a/b}}", "queue.shared.name: found 'a/b'"),
        ("queue: {shared: {lease: 0s}}", "queue.shared.lease: must be longer than 0s"),
        ("queue: {redis: {prefix: 'a{b'}}", "queue.redis.prefix: found 'a{b'"),
        ("admin: {mail: true, address: '192.0.2.1:80'}", "admin.tokens_file: other hosts can reach 192.0.2.1:80"),
        ("zones: {default: {transport: http}}", "zones.default.http.url: found '', expected http:// or https://"),
        ("queue: {durability: maybe}", "z.yaml:1: queue.durability: found 'maybe', allowed: sync, none"),
        ("zones: {default: {tls: dane}}", "zones.default.tls: 'dane' is not available"),
        ("listeners: [{address: localhost}]", "listeners[0].address: found 'localhost', expected host:port"),
        ("listeners: {}", "listeners: found a mapping, expected a list of items such as '- address: …'"),
        ("pools: {default: {}}", "pools.default: found a mapping, expected a list of items such as '- address: …'"),
        ("listeners: [{address: 'a:99999'}]", "listeners[0].address: found 'a:99999', expected a port up to 65535"),
        ("admin: {address: 'a:99999'}", "found 'a:99999', expected a port up to 65535"),
        ("zones: {default: {smarthost: 'a:99999'}}", "found 'a:99999', expected a port up to 65535"),
        ("listeners: [{address: 'a:1', idle_timeout: 0s}]", "listeners[0].idle_timeout: must be longer than 0s"),
        ("listeners: [{address: 'a:1', message_timeout: 0s}]", "listeners[0].message_timeout: must be longer than 0s"),
        ("listeners: [{address: 'a:1', max_message_size: 0}]", "listeners[0].max_message_size: found 0, expected a size"),
        ("intake: {scan: {timeout: 0s}}", "intake.scan.timeout: must be longer than 0s"),
        ("zones: {default: {transport: http, http: {url: 'http://a', timeout: 0s}}}", "zones.default.http.timeout: must be longer"),
        ("intake: {scan: {rspamd: 'http://[::1'}}", "intake.scan.rspamd: found 'http://[::1', expected http:// or https://"),
        ("queue: {s3: {endpoint: 'http://[x'}}", "queue.s3.endpoint: found 'http://[x', expected http://"),
        ("queue: {redis: {url: 'redis://a:99999/0'}}", "queue.redis.url: found 'redis://a:99999/0', expected redis://"),
        ("zones: {default: {transport: http, http: {url: 'http://[::1'}}}", "zones.default.http.url: found 'http://[::1', expected"),
        ("zones: {default: {port: 025}}", "zones.default.port: found '025', which YAML reads as 21"),
        ("zones: {default: {connections: 1:30}}", "zones.default.connections: found '1:30', which YAML reads as 90"),
        ('queue: {directory: "a\\0b"}', "queue.directory: found 'a\0b', expected a path"),
        ("zones: {Bulk: {}}", "zones.Bulk: a zone's name is lower-case"),
        ("zones: {a/b: {}}", "zones.a/b: a zone's name"),
        ("zones: {default: {connections: 0}}", "found 0, allowed: 1 to 10000"),
        ("zones: {default: {connections: many}}", "found 'many', expected a whole number"),
        ("zones: {default: {connections: true}}", "found 'true', expected a whole number"),
        ("hostname: 5", "hostname: found '5', expected text"),
        ("a: [", "z.yaml:1: not YAML"),
        ("queue: {store: leveldb, store: leveldb}", "queue.store: appears twice"),
        ("zones: {default: {fallback_pool: nope}}", "zones.default.fallback_pool: no pool 'nope'; pools: default"),
        ("zones: {default: {fallback_pool: default}}", "zones.default.fallback_pool: 'default' is the pool that"),
        ("zones:\n  default:\n    pool: nope\n", "z.yaml:3: zones.default.pool: no pool 'nope'; pools: default"),
        ("routing: [{zone: default}]", "routing[0]: exactly one of"),
        ("routing: [{source: 10.0.0.0/8, zone: x}]", "routing[0].zone: no zone 'x'"),
        ("routing: [{source: 10.0.0.0/99, zone: default}]", "expected a network"),
        ("pools: {default: [{weight: 0}]}", "pools.default: needs an address with a weight above 0"),
        ("pools: {default: [{address: 192.0.2.1, limits: {sessions: 1}}], b: [{address: 192.0.2.1, limits: {sessions: 2}}]}",
         "pools.b[0].limits: differ from those of the same address in pools.default[0]: give them once, they hold in all pools"),
        ("pools: {default: [{address: here}]}", "pools.default[0].address: found 'here', expected an IP address"),
        ("listeners: [{address: 'a:1', tls: {mode: starttls}}]", "listeners[0].tls: mode 'starttls' needs certificate_file and key_file"),
        ("listeners: [{address: 'a:1', auth: {users_file: u}}]", "passwords would be sent unencrypted"),
        ("listeners: [{address: 'a:1', auth: {users_file: u, require_tls: false}}]", "listeners[0].auth: every user could send as any domain: set tenants"),
        ("tenants: {A: {}}", "tenants.A: a tenant's name is lower-case letters"),
        ("tenants: {default: {}}", "tenants.default: a tenant's name"),
        ("tenants:\n  a: {users: [u]}\n  b: {users: [u]}\n", "z.yaml:3: tenants.b.users: 'u' is a user of tenant 'a' too"),
        ("tenants: {a: {networks: [10.0.0.0/8]}, b: {networks: [10.0.0.0/8]}}", "tenants.b.networks: 10.0.0.0/8 is one of tenant 'a' too"),
        ("tenants: {a: {domains: [Acme.com]}}", "tenants.a.domains: found 'Acme.com', expected a domain"),
        ("tenants: {a: {domains: ['*']}}", "tenants.a.domains: found '*'"),
        ("tenants: {a: {zones: [x]}}", "tenants.a.zones: no zone 'x'; zones: default"),
        ("tenants: {a: {pool: x}}", "tenants.a.pool: no pool 'x'; pools: default"),
        ("tenants: {a: {limits: {bytes: [5/h, none]}}}", "tenants.a.limits.bytes[1]: found 'none', expected a size for a time"),
        ("tenants: {a: {zones: []}}", "tenants.a.zones: at least one zone is needed"),
        ("tenants: {a: {weight: 0}}", "tenants.a.weight: found 0, allowed: 1 to 1000"),
        ("tenants: {a: {domain: [x.example]}}", "tenants.a.domain: unknown key; did you mean 'domains'?"),
        ("tenants: {include: 5}", "tenants.include: found '5', expected text"),
        ("tenants: {include: none.yaml}", "z.yaml:1: tenants.include: no file /etc/zonemta/none.yaml"),
        ("listeners: [{address: 'a:1', submission_key: {refuse_other_content: [envid, X-Y]}}]",
         "listeners[0].submission_key.refuse_other_content: 'X-Y' is no source of keys; there are X-Submission-Key, ENVID,"),
        ("listeners: [{address: 'a:1', options: {campaign: 'a b'}}]", "listeners[0].options.campaign: expected the name of a header field"),
        ("listeners: [{address: 'a:1'}, {address: 'a:1'}]", "listeners[1].address: a:1 appears twice"),
        ("zones: {default: {smarthost_auth: {username: u, password_file: p}}}", "needs a smarthost"),
        ("zones: {default: {tls: implicit}}", "zones.default.tls: implicit needs a smarthost"),
        ("zones: {default: {tls_ca_file: ca.pem}}", "zones.default.tls_ca_file: no certificate is verified"),
        ("zones: {default: {smarthost: 'a:1', smarthost_auth: {username: u}}}", "needs both"),
        ("zones: {default: {retry: {delays: []}}}", "at least one delay"),
        ("hostname: 'bad host'", "hostname: found 'bad host', expected a host name"),
        ("pools: {default: [{ehlo: 'a b'}]}", "pools.default[0].ehlo"),
        ("resolver: {nameservers: [ns.example]}", "resolver.nameservers[0]: found 'ns.example', expected an IP address"),
        ("resolver: {timeout: 0s}", "resolver.timeout: must be longer"),
        ("zones: {default: {timeouts: {dot: 0s}}}", "zones.default.timeouts.dot: must be longer"),
        ("[1, 2]", "the document: found a list, expected a mapping"),
        ("? [a, b]\n: 1\n", "a key must be a word"),
        ("hostname: !!python/object:os.system x", "hostname"),
    ],
)  # fmt: skip
def test_errors_say_where_what_and_what_is_allowed(text: str, expected: str) -> None:
    """File, line, key, what was found, what is allowed."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, HERE)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"{HERE}:")


def test_unreadable(directory: Path) -> None:
    """A missing file, and one that is not text."""
    with pytest.raises(ConfigError, match=r"nope\.yaml: cannot be read"):
        load_config(directory / "nope.yaml")
    (directory / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(directory / "bad.yaml")


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_an_error(text: str) -> None:
    """Whatever the file holds, ConfigError is the only exception."""
    try:
        parse_config(text, HERE)
    except ConfigError:
        pass


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda s: (
            st.lists(s, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "zones",
                        "default",
                        "queue",
                        "listeners",
                        "tls",
                        "rate",
                        "address",
                        "retry",
                        "delays",
                    ]
                ),
                s,
                max_size=3,
            )
        ),
        max_leaves=12,
    )
)
def test_any_structure_is_a_configuration_or_an_error(value: object) -> None:
    """Right keys with wrong kinds of values give ConfigError."""
    import json

    try:
        parse_config(json.dumps(value), HERE)
    except ConfigError:
        pass


def test_off_is_a_word() -> None:
    """YAML 1.1 reads it as a boolean; ``tls: off`` is a word."""
    assert parse_config("zones: {default: {tls: off}}", HERE).zones["default"].tls == "off"
    with pytest.raises(ConfigError, match="expected text"):
        parse_config("zones: {default: {tls: no}}", HERE)


OLD = """\
listeners:
  - tls: {mode: starttls, certificate: c.pem, key: k.pem}
zones:
  default:
    retry:
      policy: exponential
      first: 1m
      factor: 3
      skip: 7
      priorities: {urgent: [1m]}
      exponential: {longest: 1h}
"""
NEW = """\
listeners:
  - tls: {mode: starttls, certificate_file: c.pem, key_file: k.pem}
zones:
  default:
    retry:
      policy: exponential
      exponential: {first: 1m, factor: 3, longest: 1h}
      quadratic: {growth: 7}
      priority: {urgent: [1m]}
"""


def test_old_keys_mean_the_new_ones() -> None:
    """Each with a warning that names file, line, old key and new key; the file of the new ones has none."""
    old, new = parse_config(OLD, HERE), parse_config(NEW, HERE)
    assert old == new
    assert new.deprecated == ()
    retry = "zones.default.retry"
    assert [each.removeprefix(f"{HERE}:") for each in old.deprecated] == [
        "2: listeners[0].tls.certificate is deprecated: use listeners[0].tls.certificate_file",
        "2: listeners[0].tls.key is deprecated: use listeners[0].tls.key_file",
        f"7: {retry}.first is deprecated: use {retry}.exponential.first",
        f"8: {retry}.factor is deprecated: use {retry}.exponential.factor",
        f"9: {retry}.skip is deprecated: use {retry}.quadratic.growth",
        f"10: {retry}.priorities is deprecated: use {retry}.priority",
    ]


def test_old_keys_are_inherited() -> None:
    text = "zones: {default: {retry: {first: 1m}}, bulk: {retry: {exponential: {factor: 3}}}}"
    assert parse_config(text, HERE).zones["bulk"].retry.exponential == ExponentialRetry(Seconds(60), 3)


def test_a_deprecated_key_is_logged(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When a file is loaded: one line for the log, or on stderr for ``zonemta check``."""
    (directory / "z.yaml").write_text("zones:\n  default:\n    retry: {skip: 7}\n")
    load_config(directory / "z.yaml")
    retry = "zones.default.retry"
    expected = f"{directory / 'z.yaml'}:3: {retry}.skip is deprecated: use {retry}.quadratic.growth"
    assert caplog.messages == [expected]


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        ("{factor: 500}", ":1: zones.default.retry.factor: found 500, allowed: 1 to 100"),
        ("{first: 0s}", ":1: zones.default.retry.first: a delay must be longer than 0s"),
        ("{priorities: {normal: []}}", ":1: zones.default.retry.priorities.normal: at least one delay"),
        ("{first: 1m, exponential: {first: 2m}}", "retry.first: is the old name of zones.default.retry.exponential.first"),
        ("{priority: {}, priorities: {}}", "retry.priorities: is the old name of zones.default.retry.priority"),
        ("{first: 1m, exponential: 5}", "retry.exponential: found '5', expected a mapping"),
        ("{exponential: {frist: 1m}}", "retry.exponential.frist: unknown key; did you mean 'first'?"),
    ],
)  # fmt: skip
def test_errors_name_the_key_that_the_file_has(retry: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"zones: {{default: {{retry: {retry}}}}}", HERE)
    assert expected in str(caught.value)


def test_a_null_section_takes_old_keys() -> None:
    text = "zones: {default: {retry: {exponential: null, first: 1m}}}"
    assert parse_config(text, HERE).zones["default"].retry.exponential.first == 60


@pytest.mark.parametrize("text", ["10", "10%", "'10 %'"])
def test_percentages(text: str) -> None:
    assert parse_config(f"zones: {{default: {{retry: {{jitter: {text}}}}}}}", HERE) == parse_config(
        "", HERE
    )
    with pytest.raises(ConfigError, match="found 101, allowed: 0 to 100"):
        parse_config("zones: {default: {retry: {jitter: 101%}}}", HERE)
    with pytest.raises(ConfigError, match="per cent such as 10%"):
        parse_config("zones: {default: {retry: {jitter: 1.5}}}", HERE)


def test_every_old_key_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    for prefix, kind in (("listeners.tls", ListenerTls), ("zones.retry", Retry)):
        assert all(f"`{prefix}.{old}`" in page for old in kind.RENAMED)


def test_check_names_deprecated_keys(directory: Path) -> None:
    """On stderr; the configuration is valid."""
    path = directory / "z.yaml"
    path.write_text(f"{OLD.partition('zones:')[1]}{OLD.partition('zones:')[2]}")
    command = [sys.executable, "-m", "zonemta_py", "check", "-c", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout.split(": ")[1].split()[0]) == (0, "ok")
    assert checked.stderr.count(" is deprecated: use ") == 4


def test_included_tenants(tmp_path: Path) -> None:
    """Errors name the file; the order is that of the names; relays that get the text read no file."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/1.yaml").write_text("a: {domains: [a.example]}\nb: {weight: 3}\n")
    (tmp_path / "d/2.yaml").write_text("")
    (tmp_path / "z.yaml").write_text("tenants:\n  include: [d/*.yaml, none/*.yaml]\n  c: {}\n")
    config = load_config(tmp_path / "z.yaml")
    assert list(config.tenants) == ["c", "a", "b"]
    (tmp_path / "d/1.yaml").unlink()
    assert parse_config(config.text, tmp_path / "z.yaml", config.included) == config
    for text, expected in (
        ("a: {}\nc: {}\n", r"d/2\.yaml:2: tenants\.c: appears in .*z\.yaml too"),
        ("a:\n  zones: [x]\n", r"d/2\.yaml:2: tenants\.a\.zones: no zone 'x'"),
        ("a: {weigth: 1}", r"d/2\.yaml:1: tenants\.a\.weigth: unknown key"),
        ("- a", r"d/2\.yaml:1: tenants: found a list"),
        ("a: [", r"d/2\.yaml:1: not YAML"),
    ):
        (tmp_path / "d/2.yaml").write_text(text)
        with pytest.raises(ConfigError, match=expected):
            load_config(tmp_path / "z.yaml")


def test_a_tenant_is_found() -> None:
    """By user, else by the most specific network."""
    tenants = Tenants(
        parse_config(
            """
tenants:
  a: {users: [ann], networks: [10.0.0.0/8, "2001:db8::/32"], domains: [a.example, "*.a.example"]}
  b: {users: [bob], networks: [10.1.0.0/16, 10.2.0.1/32], domains: ["*.b.example"]}
""",
            HERE,
        ).tenants
    )

    def name(user: str, ip: str) -> str:
        found = tenants.of(user, ip)
        return found.name if found else ""

    cases = {
        ("ann", "10.1.0.1"): "a", ("eve", "10.1.0.1"): "", ("", "10.1.0.1"): "b", ("", "10.2.0.1"): "b",
        ("", "10.2.0.2"): "a", ("", "::ffff:10.2.0.2"): "a", ("", "2001:db8::9"): "a", ("", "192.0.2.1"): "",
        ("", ""): "",
    }  # fmt: skip
    assert {case: name(*case) for case in cases} == cases
    has = {
        domain: [tenant for tenant in "ab" if (found := tenants.get(tenant)) and found.has(domain)]
        for domain in ("a.example", "x.y.a.example", "xa.example", "example", "b.example", "c.b.example")
    }
    assert list(has.values()) == [["a"], ["a"], [], [], [], ["b"]]
    assert [
        tenants.signs_for(*each)
        for each in (
            ("a", "a.example"),
            ("b", "a.example"),
            ("", "a.example"),
            ("", "b.example"),
            ("gone", "a.example"),
        )
    ] == [True, False, False, True, False]
