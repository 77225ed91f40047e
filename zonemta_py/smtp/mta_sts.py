"""MTA-STS: the MX hosts that a domain names as its own, with certificates. Pure.

Source: RFC 8461 sections 3.1 (the TXT record), 3.2 (the policy) and 4.1 (names of hosts).
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

POLICY_MAX_BYTES = 64 << 10
MX_MAX = 200  # patterns in a policy; the largest providers have fewer than ten
MAX_AGE_MAX_S = 31_557_600
MODES = ("enforce", "testing", "none")

_RECORD = re.compile(rb"v=STSv1[ \t]*(?:;|\Z)")
_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.IGNORECASE)


class StsPolicy(NamedTuple):
    """The policy of a domain. ``hosts``: names in lower case, or ``*.name`` for those one label below it."""

    mode: str
    hosts: tuple[str, ...]
    max_age_s: int

    @property
    def is_enforced(self) -> bool:
        """True if mail must not go to other hosts, nor without a verified certificate."""
        return self.mode == "enforce"

    def permits(self, host: str) -> bool:
        """True if ``host``, the name in an MX record, is one of the domain's."""
        name = host.lower().rstrip(".")
        return name in self.hosts or f"*.{name.partition('.')[2]}" in self.hosts


def policy_id(records: Iterable[bytes]) -> str | None:
    """The id of the policy by the TXT records at ``_mta-sts.DOMAIN``; None: the domain has no policy."""
    found = [record for record in records if _RECORD.match(record)]
    if len(found) != 1:
        return None
    for part in found[0].split(b";")[1:]:
        name, _, value = part.decode("ascii", "replace").strip(" \t").partition("=")
        if name == "id":
            return value if _ID.fullmatch(value) else None
    return None


def parse_policy(data: bytes) -> StsPolicy:
    """The policy in a file. Of a key that is there twice the first value counts. Raises ValueError that says what is wrong."""
    values: dict[str, str] = {}
    hosts: list[str] = []
    for line in data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"):
        key, colon, value = line.partition(":")
        key, value = key.strip(" \t"), value.strip(" \t")
        if colon and key == "mx":
            hosts.append(value.lower().rstrip("."))
        elif colon:
            values.setdefault(key, value)
    if values.get("version") != "STSv1":
        raise ValueError("version: expected STSv1")
    mode, max_age = values.get("mode", ""), values.get("max_age", "")
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}")
    if not _NUMBER.fullmatch(max_age):
        raise ValueError("max_age: expected a number of seconds")
    if len(hosts) > MX_MAX:
        raise ValueError(f"mx: more than {MX_MAX}")
    if mode != "none" and not hosts:
        raise ValueError("mx: missing")
    if not all(len(host) <= 255 and _HOST.fullmatch(host) for host in hosts):
        raise ValueError("mx: expected names of hosts, or *.name")
    return StsPolicy(mode, tuple(hosts), min(int(max_age), MAX_AGE_MAX_S))
