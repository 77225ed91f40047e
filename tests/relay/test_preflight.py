"""What a configuration needs of this machine is said before anything starts."""

import os
from pathlib import Path

import pytest

from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.relay.preflight import verify, warnings


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("queue: {directory: file}", "queue.directory: .*file is not a directory"),
        ("events: {directory: file/events}", "events.directory: .*file is not a directory"),
        (
            "pools: {default: [{address: 192.0.2.1}]}",
            r"pools\.default\[0\]\.address: 192\.0\.2\.1 is not an address of this machine",
        ),
        (
            "listeners: [{address: 'a:1', tls: {mode: implicit, certificate: c, key: k}}]",
            r"listeners\[0\]\.tls: .*cannot be used for TLS",
        ),
        (
            "listeners: [{address: 'a:1', auth: {users_file: nope, require_tls: false}, senders: any}]",
            r"listeners\[0\]\.auth\.users_file: .*nope.*there is none; zonemta user add",
        ),
        (f"queue: {{directory: {'a' * 300}}}", "queue.directory: File name too long: .*aaa"),
        (
            "zones: {default: {tls: required, smarthost: 'a:1', smarthost_auth: {username: u, password_file: nope}}}",
            "zones.default.smarthost_auth.password_file: .*nope",
        ),
    ],
)
def test_says_which_key(directory: Path, text: str, problem: str) -> None:
    (directory / "file").write_text("")
    with pytest.raises(ConfigError, match=problem):
        verify(parse_config(text, directory / "z.yaml"))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "pools:\n  default:\n    - address: 192.0.2.1\n",
            "3: pools.default[0].address: 192.0.2.1 is not",
        ),
        ("hostname: a.example\nproviders:\n  file: nope.yaml\n", "3: providers.file: "),
        ("dkim:\n  keys:\n    - {domain: a.example, selector: s, key_file: nope.pem}\n", "1: dkim: "),
        ("hostname: a.example\nqueue: {directory: file}\n", "2: queue.directory: "),
    ],
)
def test_says_where(directory: Path, text: str, where: str) -> None:
    (directory / "file").write_text("")
    path = directory / "z.yaml"
    with pytest.raises(ConfigError) as caught:
        verify(parse_config(text, path))
    assert str(caught.value).startswith(f"{path}:{where}")


def test_a_pipe_among_the_files_of_tenants_is_refused(directory: Path) -> None:
    """Its reader would wait for a writer."""
    os.mkfifo(directory / "a.tenants")
    with pytest.raises(ConfigError, match=r"1: tenants\.include: .*a\.tenants is no file"):
        parse_config("tenants: {include: '*.tenants'}", directory / "z.yaml")


def test_warnings(directory: Path) -> None:
    config = parse_config(
        "listeners: [{address: 'a:1', trusted_networks: [0.0.0.0/0]}]\nqueue: {durability: none}\n",
        directory / "z.yaml",
    )
    verify(config)
    assert len(list(warnings(config, "relay.example"))) == 2
    assert "not a full domain name" in next(iter(warnings(config, "localhost")))


def test_domains_of_tenants_without_a_key(directory: Path) -> None:
    """A key signs for its domain and those below it, if the tenant has it."""
    tenants = """
tenants:
  acme: {domains: [acme.example, "*.acme.example", news.other.example]}
  globex: {domains: ["*.globex.example", "*.many.example"]}
"""
    keys = """
dkim:
  keys:
    - {domain: acme.example, selector: s, key_file: k}
    - {domain: globex.example, selector: s, key_file: k}
    - {domain: a.many.example, selector: s, key_file: k}
"""
    config = parse_config(tenants + keys, directory / "z.yaml")
    [warning] = warnings(config, "relay.example")
    assert warning == (
        "dkim.keys has no key for news.other.example (acme), *.globex.example (globex): their mail is not signed"
    )
    assert list(warnings(parse_config(tenants, directory / "z.yaml"), "relay.example")) == []
    many = "tenants: {acme: {domains: [" + ", ".join(f"d{n}.example" for n in range(9)) + "]}}\n"
    [warning] = warnings(parse_config(many + keys, directory / "z.yaml"), "relay.example")
    assert warning.endswith("d4.example (acme) and 4 others: their mail is not signed")


def test_secrets_that_others_can_read(directory: Path) -> None:
    """Those of the owner and the group are not reported, nor what is not there."""
    for name, mode in (("open", 0o644), ("group", 0o640), ("own", 0o600)):
        (directory / name).touch(mode)
        (directory / name).chmod(mode)
    config = parse_config(
        """
dkim: {keys: [{domain: a.example, selector: s, key_file: open}, {domain: b.example, selector: s, key_file: group}]}
zones: {default: {smarthost: "a:1", tls: required, smarthost_auth: {username: u, password_file: open}}}
admin: {token_file: own, tls: {certificate_file: none, key_file: none}}
""",
        directory / "z.yaml",
    )
    found = [each.partition(": ")[0] for each in warnings(config, "relay.example")]
    assert found == ["dkim.keys[0].key_file", "zones.default.smarthost_auth.password_file"]
