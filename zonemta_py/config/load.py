"""YAML to ``Config``, or one ConfigError naming file, line, key, what was found and what is allowed.

The one door to PyYAML. Documents are composed to nodes, which know their lines, and read against
the types of ``config.schema``; nothing in a file is ever executed or silently ignored.
"""

import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import Field, fields, is_dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, NoReturn

import yaml

from zonemta_py.config.checks import check
from zonemta_py.config.schema import Config
from zonemta_py.config.units import (
    HostPort,
    NameServer,
    ProcessCount,
    Rate,
    Seconds,
    Size,
    duration,
    host_port,
    process_count,
    rate,
    size,
)
from zonemta_py.core.errors import ConfigError

_PARSERS: dict[Any, Any] = {
    Seconds: duration,
    Size: size,
    Rate: rate,
    HostPort: host_port,
    NameServer: lambda value: host_port(value, 53),
    ProcessCount: process_count,
}


def load_config(path: Path | str) -> Config:
    """The configuration in ``path``; relative paths in it start at the file's folder."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc
    return parse_config(text, path)


def load_plain(path: Path) -> Any:
    """Any YAML document as plain values, for files that are not configurations. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    return plain(text, str(path))


def plain(text: str, where: str) -> Any:
    """The plain values of YAML. Raises ConfigError that begins with ``where``."""
    try:
        return yaml.safe_load(text)
    except (ValueError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def parse_config(text: str, path: Path) -> Config:
    """The configuration in ``text``; ``path`` names it in errors and anchors relative paths."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not YAML: {getattr(exc, 'problem', exc)}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from exc
    reader = _Reader(path)
    try:
        config = Config() if node is None else reader.read(node, Config, Config(), "")
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from exc
    check(config, reader.complain)
    anchored: Config = reader.anchor(config)
    return replace(anchored, text=text, path=str(path))


class _Reader:
    """Reads nodes into typed values and remembers on which line each key stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, int] = {}

    def fail(self, node: yaml.Node, key: str, text: str) -> NoReturn:
        raise ConfigError(f"{self.path}:{node.start_mark.line + 1}: {key or 'the document'}: {text}")

    def complain(self, key: str, text: str) -> NoReturn:
        """Refuse ``key`` for a reason that takes more than one key to see."""
        line, place = 1, key
        while place:
            if place in self.lines:
                line = self.lines[place]
                break
            place = place.rpartition(".")[0]
        raise ConfigError(f"{self.path}:{line}: {key}: {text}")

    def read(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        """The value of ``node`` as ``kind``; what a mapping leaves out comes from ``base``."""
        self.lines.setdefault(key, node.start_mark.line + 1)
        if is_dataclass(kind):
            return self._dataclass(node, kind, base, key)
        origin = typing.get_origin(kind)
        if origin in (types.UnionType, typing.Union):
            return self._union(node, kind, base, key)
        if origin is tuple:
            item = typing.get_args(kind)[0]
            if not isinstance(node, yaml.SequenceNode):
                self.fail(node, key, f"found {_shown(node)}, expected a list")
            return tuple(
                self.read(n, item, _default_of(item), f"{key}[{i}]") for i, n in enumerate(node.value)
            )
        if origin is dict:
            return self._named(node, kind, base, key)
        return self._scalar(node, kind, key)

    def _pairs(self, node: yaml.Node, key: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, key, f"found {_shown(node)}, expected a mapping of keys to values")
        pairs, seen = [], set()
        for name_node, value in node.value:
            name = name_node.value
            if not isinstance(name, str):
                self.fail(name_node, key, "a key must be a word")
            if name in seen:
                self.fail(name_node, _under(key, name), "stands twice")
            seen.add(name)
            pairs.append((name, name_node, value))
        return pairs

    def _dataclass(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        if node.tag == "tag:yaml.org,2002:null":
            return base  # `bulk:` with nothing behind it: everything inherited
        known: dict[str, Field[Any]] = {
            f.name.rstrip("_"): f for f in fields(kind) if not f.metadata.get("hidden")
        }
        hints = typing.get_type_hints(kind)
        changes = {}
        for name, name_node, value_node in self._pairs(node, key):
            where = _under(key, name)
            if name not in known:
                self.fail(name_node, where, f"unknown key; {_suggest(name, known)}")
            field = known[name]
            value = self.read(value_node, hints[field.name], getattr(base, field.name), where)
            self._limits(value_node, field, value, where)
            changes[field.name] = value
        return replace(base, **changes)

    def _named(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        """A mapping of names the user chose. In ``zones`` each inherits from ``default``."""
        item = typing.get_args(kind)[1]
        pairs = self._pairs(node, key)
        result = dict(base)
        if is_dataclass(item):
            pairs.sort(key=lambda pair: pair[0] != "default")
        for name, _, value in pairs:
            inherited = result["default"] if is_dataclass(item) else None
            result[name] = self.read(value, item, inherited, _under(key, name))
        return result

    def _union(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        options = typing.get_args(kind)
        if type(None) in options and node.tag == "tag:yaml.org,2002:null":
            return None
        rest = [option for option in options if option is not type(None)]
        if IPv4Network in rest and IPv6Network in rest:
            return self._network(node, key)
        return self.read(node, rest[0], base, key)

    def _network(self, node: yaml.Node, key: str) -> Any:
        try:
            return ip_network(str(node.value), strict=False)
        except ValueError:
            self.fail(
                node, key, f"found {_shown(node)}, expected a network such as 10.0.0.0/8 or ::1/128"
            )

    def _scalar(self, node: yaml.Node, kind: Any, key: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self.fail(node, key, f"found {_shown(node)}, expected {_wanted(kind)}")
        try:
            value = _plain(node)
        except (
            yaml.YAMLError,
            ValueError,
            LookupError,
            AttributeError,
        ):  # what PyYAML raises for odd tags
            self.fail(node, key, f"found {_shown(node)} with tag {node.tag}, expected {_wanted(kind)}")
        if kind in _PARSERS:
            try:
                return _PARSERS[kind](value)
            except ValueError as exc:
                self.fail(node, key, f"found {_shown(node)}, expected {exc}")
        if kind is str and value is False and node.value.lower() == "off":
            return "off"  # YAML 1.1 takes the word for a boolean; who writes `tls: off` does not
        if kind is Path and isinstance(value, str) and value:
            return Path(value)
        if type(value) is kind:
            return value
        self.fail(node, key, f"found {_shown(node)}, expected {_wanted(kind)}")

    def _limits(self, node: yaml.Node, spec: Field[Any], value: Any, key: str) -> None:
        limits = spec.metadata
        if "choices" in limits and value not in limits["choices"]:
            if value in limits["later"]:
                self.fail(node, key, f"'{value}' is not available in this version")
            self.fail(node, key, f"found '{value}', allowed: {', '.join(limits['choices'])}")
        if "least" in limits and not limits["least"] <= value <= limits["most"]:
            self.fail(node, key, f"found {value}, allowed: {limits['least']} to {limits['most']}")

    def anchor(self, value: Any) -> Any:
        """``value`` with every relative path put under the folder of the file."""
        if isinstance(value, Path):
            return self.path.parent / value
        if is_dataclass(value) and not isinstance(value, type):
            changes = {f.name: self.anchor(getattr(value, f.name)) for f in fields(value)}
            return replace(value, **changes)
        if isinstance(value, dict):
            return {name: self.anchor(item) for name, item in value.items()}
        if type(value) is tuple:
            return tuple(self.anchor(item) for item in value)
        return value


def _plain(node: yaml.ScalarNode) -> Any:
    """What YAML says the scalar is: text, number, boolean or None."""
    return yaml.SafeLoader("").construct_object(node)


def _default_of(kind: Any) -> Any:
    """What an item of a list starts from."""
    return kind() if isinstance(kind, type) and is_dataclass(kind) else None


def _under(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"'{node.value}'" if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _wanted(kind: Any) -> str:
    names = {str: "text", int: "a whole number", bool: "true or false", Path: "a path"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean '{close[0]}'?" if close else f"allowed: {', '.join(sorted(known))}"
