"""The TXT record and the policy of MTA-STS, as RFC 8461 has them, and as hostile servers might."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.delivery.sts_policies import MAX_AGE_MAX_S, MX_MAX, StsPolicy, parse_policy, policy_id

EXAMPLE = b"""version: STSv1
mode: enforce
mx: mail.example.com
mx: *.example.net
mx: backupmx.example.com
max_age: 604800
"""


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([b"v=STSv1; id=20160831085700Z;"], "20160831085700Z"),
        ([b"v=STSv1;id=1"], "1"),
        ([b"v=STSv1 ; id=a1 ; other=x"], "a1"),
        ([b"spf", b"v=STSv1; other=x; id=2;"], "2"),
        ([], None),
        ([b"v=spf1 -all"], None),
        ([b"v=STSv1"], None),
        ([b"v=STSv10; id=1"], None),
        ([b"v=STSv1; id=;"], None),
        ([b"v=STSv1; id=with space"], None),
        ([b"v=STSv1; id=" + b"1" * 33], None),
        ([b"v=STSv1; id=\xff\xfe"], None),
        ([b"v=STSv1; id=1;", b"v=STSv1; id=1;"], None),
    ],
)
def test_the_id_of_a_policy(records: list[bytes], found: str | None) -> None:
    assert policy_id(records) == found


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_the_policy_of_the_rfc(ends: bytes) -> None:
    found = parse_policy(EXAMPLE.replace(b"\n", ends))
    hosts = ("mail.example.com", "*.example.net", "backupmx.example.com")
    assert found == StsPolicy("enforce", hosts, 604800)
    assert found.is_enforced


@pytest.mark.parametrize(
    ("host", "is_permitted"),
    [
        ("mail.example.com", True),
        ("MAIL.example.com.", True),
        ("mx1.example.net", True),
        ("example.net", False),
        ("a.b.example.net", False),
        ("other.example.com", False),
        ("xmail.example.com", False),
        ("net", False),
        ("", False),
    ],
)
def test_hosts(host: str, is_permitted: bool) -> None:
    assert parse_policy(EXAMPLE).permits(host) == is_permitted


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("version: STSv1\nmode: none\nmax_age: 1", StsPolicy("none", (), 1)),
        (
            "version:STSv1\nmode:testing \nmx:\tA.Example.\nmax_age:9999999999",
            StsPolicy("testing", ("a.example",), MAX_AGE_MAX_S),
        ),
        (
            "version: STSv1\nmode: testing\nmode: enforce\nmx: a.example\nmax_age: 5\nmax_age: x\nnew: é",
            StsPolicy("testing", ("a.example",), 5),
        ),
    ],
)
def test_other_policies(text: str, found: StsPolicy) -> None:
    assert parse_policy(text.encode()) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "version"),
        ("version: STSv2\nmode: enforce\nmx: a.example\nmax_age: 1", "version"),
        ("version: STSv1\nmode: Enforce\nmx: a.example\nmax_age: 1", "mode"),
        ("version: STSv1\nmx: a.example\nmax_age: 1", "mode"),
        ("version: STSv1\nmode: enforce\nmax_age: 1", "mx: missing"),
        ("version: STSv1\nmode: enforce\nmx: a.example", "max_age"),
        ("version: STSv1\nmode: enforce\nmx: a.example\nmax_age: -1", "max_age"),
        ("version: STSv1\nmode: enforce\nmx: a.example\nmax_age: " + "1" * 5000, "max_age"),
        ("version: STSv1\nmode: enforce\nmx: *\nmax_age: 1", "mx: expected"),
        ("version: STSv1\nmode: enforce\nmx: a.*.example\nmax_age: 1", "mx: expected"),
        ("version: STSv1\nmode: enforce\nmx: \nmax_age: 1", "mx: expected"),
        ("version: STSv1\nmode: enforce\nmax_age: 1\n" + "mx: a.example\n" * (MX_MAX + 1), "more than"),
    ],
)
def test_policies_that_are_none(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_policy(text.encode())


NAMES = st.from_regex(r"(\*\.)?[a-z0-9-]{1,10}(\.[a-z0-9-]{1,10}){1,3}", fullmatch=True)


@given(st.sampled_from(["enforce", "testing"]), st.lists(NAMES, min_size=1), st.integers(0, 10**9))
def test_what_is_written_is_read(mode: str, hosts: list[str], max_age_s: int) -> None:
    lines = [
        "version: STSv1",
        f"mode: {mode}",
        *(f"mx: {host}" for host in hosts),
        f"max_age: {max_age_s}",
    ]
    found = parse_policy("\n".join(lines).encode())
    assert found == StsPolicy(mode, tuple(hosts), min(max_age_s, MAX_AGE_MAX_S))
    for host in hosts:
        assert found.permits(host.replace("*", "any"))
