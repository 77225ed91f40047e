"""The table of providers that comes with the relay: it loads, its patterns do not overlap, its values have sources."""

import re
from functools import cache
from itertools import combinations

import pytest

from zonemta_py.config.load import shipped_file
from zonemta_py.config.providers import ProviderTable, load_providers

TABLE = load_providers(None, shipped=True)
SOURCE = re.compile(r"(?P<source>[A-Za-z][^,]{5,}.*)[, ] ?(?:read |quoted )?20\d\d-\d\d(-\d\d)?$")
VALUE = re.compile(r"^ {4,6}(?:mx|sessions\w*|messages_per_session|rate|connect_rate): ")
HOSTS = {
    "gmail-smtp-in.l.google.com": "google",
    "outlook-com.olc.protection.outlook.com": "microsoft",
    "example-com.mail.protection.outlook.com": "microsoft_365",
    "example-com.a-v1.mx.microsoft": "microsoft_365",
    "mta5.am0.yahoodns.net": "yahoo",
    "mx1.mail.yahoo.co.jp": "yahoo_jp",
    "mx01.mail.icloud.com": "apple",
    "mx1a1.comcast.net": "comcast",
    "al-ip4-mx-vip1.prodigy.net": "att",
    "cxr.mx.a.cloudfilter.net": "cox",
    "mx00.emig.gmx.net": "gmx",
    "mx-ha02.web.de": "gmx",
    "mx00.mail.com": "mail_com",
    "mx00.kundenserver.de": "ionos",
    "mx00.t-online.de": "tonline",
    "smtp-in.orange.fr": "orange",
    "mx1.free.fr": "free",
    "smtpz4.laposte.net": "laposte",
    "smtp-in.libero.it": "libero",
    "mxs.mail.ru": "mailru",
    "mx.yandex.ru": "yandex",
    "mx1.qq.com": "qq",
    "163mx01.mxmail.netease.com": "netease",
    "mx1.naver.com": "naver",
    "mail.protonmail.ch": "proton",
    "mx.zoho.com": "zoho",
    "mxa-00000000.gslb.pphosted.com": "proofpoint",
    "eu-smtp-inbound-1.mimecast.com": "mimecast",
    "d1.a.ess.barracudanetworks.com": "barracuda",
    "route1.mx.cloudflare.net": "cloudflare",
    "mx1.emailsrvr.com": "rackspace",
    "in1-smtp.messagingengine.com": "fastmail",
    "inbound-smtp.eu-west-1.amazonaws.com": "amazon",
    "mx.example.com": "mx.example.com",
}


@cache
def overlap(one: str, other: str) -> bool:
    """Whether some name matches both patterns, of ``*`` and ``?``."""
    if not one or not other:
        return not (one + other).strip("*")
    if one[0] == "*":
        return overlap(one[1:], other) or overlap(one, other[1:])
    if other[0] == "*":
        return overlap(one, other[1:]) or overlap(one[1:], other)
    return (one[0] == other[0] or "?" in (one[0], other[0])) and overlap(one[1:], other[1:])


def shared(table: ProviderTable) -> list[str]:
    """Each two patterns of different providers which some name matches both."""
    patterns = [(name, pattern) for name, each in table.providers.items() for pattern in each.mx]
    return [
        f"{name}: {pattern}, {other_name}: {other}"
        for (name, pattern), (other_name, other) in combinations(patterns, 2)
        if name != other_name and overlap(pattern, other)
    ]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("*.a.example", "*.b.example", False),
        ("*.a.example", "*.example", True),
        ("mx.*.example", "*.b.example", True),
        ("mx.*.example", "in.*.example", False),
        ("mx?.example", "mx1.example", True),
        ("*.example", "*.example.org", False),
    ],
)
def test_overlap_of_two_patterns(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is expected


def test_no_host_belongs_to_two_providers() -> None:
    assert not shared(TABLE)
    assert len(TABLE.providers) >= 18


@pytest.mark.parametrize("host", HOSTS)
def test_hosts_belong_to_their_provider(host: str) -> None:
    assert TABLE.of("example.com", (host,)) == HOSTS[host]


def test_each_value_says_where_it_is_from_and_when() -> None:
    lines = shipped_file("providers.yaml").read_text(encoding="utf-8").splitlines()
    values = [line for line in lines if VALUE.match(line)]
    assert len(values) > len(TABLE.providers)
    assert not [line for line in values if not SOURCE.match(line.partition("  # ")[2])]
