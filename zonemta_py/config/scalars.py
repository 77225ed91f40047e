"""Scalars of YAML to values: those of ``config.units`` and ``config.endpoints``, texts, numbers, dates, paths and networks.

A tag of a file is never executed. What cannot be read raises ValueError, whose text says what was found and what is expected.
"""

import re
from datetime import date
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

import yaml

from zonemta_py.config.endpoints import (
    Address,
    AdminAddress,
    HostPort,
    NameServer,
    Smarthost,
    address,
    admin_address,
    host_port,
    smarthost,
)
from zonemta_py.config.units import (
    ByteRate,
    ExitCode,
    Keep,
    MessagesWithin,
    Percent,
    ProcessCount,
    Rate,
    Seconds,
    Size,
    Threshold,
    Word,
    byte_rate,
    day,
    duration,
    exit_code,
    keep,
    messages_within,
    percent,
    process_count,
    rate,
    size,
    threshold,
    word,
)


def _network(value: object) -> IPv4Network | IPv6Network:
    try:
        return ip_network(str(value), strict=False)
    except ValueError as exc:
        raise ValueError("a network such as 10.0.0.0/8 or ::1/128") from exc


_PARSERS: dict[Any, Any] = {
    Seconds: duration,
    Size: size,
    Rate: rate,
    ByteRate: byte_rate,
    HostPort: host_port,
    NameServer: lambda value: host_port(value, 53),
    ProcessCount: process_count,
    Percent: percent,
    ExitCode: exit_code,
    Keep: keep,
    MessagesWithin: messages_within,
    Smarthost: smarthost,
    AdminAddress: admin_address,
    Word: word,
    Threshold: threshold,
    date: day,
    Address: address,
    IPv4Network: _network,
}

_OF_YAML_1_1 = re.compile(r"[-+]?(?:0[0-9_]+\Z|[0-9_]+:)")  # octal, and to the base 60
_STR = "tag:yaml.org,2002:str"


def read_scalar(node: yaml.Node, kind: Any) -> Any:
    """The value of ``node`` as a ``kind``. Raises ValueError."""
    refused = ValueError(f"found {shown(node)}, expected {_expected(kind)}")
    if not isinstance(node, yaml.ScalarNode):
        raise refused
    try:
        value = node.value if kind in (date, IPv4Network) else _plain(node)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as exc:  # PyYAML's, for odd tags
        raise ValueError(f"found {shown(node)} with tag {node.tag}, expected {_expected(kind)}") from exc
    if type(value) in (int, float) and _OF_YAML_1_1.match(node.value):
        raise ValueError(
            f"found {shown(node)}, which YAML reads as {value}: write the number without leading 0 or ':'"
        )
    if kind in _PARSERS:
        try:
            return _PARSERS[kind](value)
        except ValueError as exc:
            raise ValueError(f"found {shown(node)}, expected {exc}") from exc
    if kind is str and value is False and node.value.lower() == "off":
        return "off"  # a boolean in YAML 1.1, a word in `tls: off`
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    if type(value) is not kind:
        raise refused
    return value


def shown(node: yaml.Node) -> str:
    """``node`` in the text of an error."""
    if isinstance(node, yaml.ScalarNode):
        return f"'{node.value}'" if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _plain(node: yaml.ScalarNode) -> Any:
    """The scalar as YAML resolves it: text, number, boolean or None."""
    if node.tag == _STR:
        return node.value
    return yaml.SafeLoader("").construct_object(node)


def _expected(kind: Any) -> str:
    names = {
        str: "text", int: "a whole number", bool: "true or false", Path: "a path",
        IPv4Network: "a network such as 10.0.0.0/8 or ::1/128",
    }  # fmt: skip
    return names.get(kind, getattr(kind, "__name__", str(kind)))
