"""YAML nodes to the typed values of ``config.schema``, with the line of each key for errors.

A mapping becomes a dataclass, a list a tuple, a scalar what ``read_scalar`` returns.

Invariants:

- No tag of a file is executed, and no key is ignored: an unknown one is an error with a suggestion.
- A value that a file lacks is the default of the schema, or that of ``base``, such as the zone of an item of ``destinations``.
- The line of every key that was read is known, also for the checks that run later (``complain``).
- Old keys (``RENAMED`` of a class) are accepted with a warning.

Callers: ``config.load`` for all files of a configuration. Example: ``Reader(path).read(node, Zone, "zones.bulk", base)``.
"""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass, replace
from functools import cache
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, NoReturn

import yaml

from zonemta_py.config.endpoints import AdminAddress, Smarthost
from zonemta_py.config.values import Rate, Word, read_scalar, shown
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import url_as_name, without_secrets

NULL, STR, MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "str", "map"))

_Pair = tuple[str, yaml.Node, yaml.Node]  # a key, its node and the node of its value


class Reader:
    """Converts nodes to typed values and remembers the line of each key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.deprecated: list[str] = []
        self._lines: dict[str, int] = {}
        self._old_names: dict[str, str] = {}  # keys by their new name, where the file has the old one
        self._others: dict[str, Reader] = {}  # of included files, by the keys that come from there

    def adopt(self, other: "Reader", keys: Iterable[str]) -> None:
        """Note that ``keys`` come from the file of ``other``."""
        self._others |= dict.fromkeys(keys, other)

    def file_of(self, key: str) -> Path:
        return self._others[key].path if key in self._others else self.path

    def line_of(self, key: str) -> int:
        """The line of ``key``, which the file has."""
        return self._lines[key]

    def fail(self, node: yaml.Node, key: str, text: str) -> NoReturn:
        """Refuse ``key`` because of its value, ``node``. Raises ConfigError."""
        self._refuse(node.start_mark.line + 1, key, text)

    def complain(self, key: str, text: str) -> NoReturn:
        """Refuse ``key`` for a reason that involves other keys. Raises ConfigError."""
        line, parent = 1, key
        owner = self._others.get(".".join(key.split(".")[:2]))
        if owner is not None:
            owner.complain(key, text)
        while parent:
            if parent in self._lines:
                line = self._lines[parent]
                break
            parent = parent.rpartition(".")[0]
        self._refuse(line, key, text)

    def _refuse(self, line: int, key: str, text: str) -> NoReturn:
        for new, old in self._old_names.items():
            if key == new or key.startswith(f"{new}."):
                key = old + key[len(new) :]
        where = url_as_name(key) or "the document"
        raise ConfigError(f"{self.path}:{line}: {where}: {without_secrets(text)}")

    def read(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        """The value of ``node`` as a ``kind``; keys that a mapping lacks come from ``base``. Raises ConfigError."""
        self._lines.setdefault(key, node.start_mark.line + 1)
        if kind is str and node.tag == STR:
            return node.value
        if kind is object:  # what the caller reads by itself
            return yaml.SafeLoader("").construct_document(node)
        if is_dataclass(kind):
            return self._dataclass(node, kind, base, key)
        origin = typing.get_origin(kind)
        if origin in (types.UnionType, typing.Union):
            return self._union(node, kind, base, key)
        if origin is tuple:
            return self._list(node, typing.get_args(kind)[0], base, key)
        if origin is dict:
            return self._named(node, kind, base, key)
        return self._scalar(node, kind, key)

    def _list(self, node: yaml.Node, item: Any, base: Any, key: str) -> Any:
        """A list; ``base``: what each item starts from, if that is a dataclass. One address, rate or word needs no list."""
        if item in (Smarthost, AdminAddress, Rate, Word) and isinstance(node, yaml.ScalarNode):
            return () if node.tag == NULL else (self._scalar(node, item, key),)
        if not isinstance(node, yaml.SequenceNode):
            first = f" of items such as '- {fields(item)[0].name}: …'" if is_dataclass(item) else ""
            self.fail(node, key, f"found {shown(node)}, expected a list{first}")
        start = base if is_dataclass(base) else _default_of(item)
        return tuple(self.read(n, item, start, f"{key}[{i}]") for i, n in enumerate(node.value))

    def _pairs(self, node: yaml.Node, key: str) -> list[_Pair]:
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, key, f"found {shown(node)}, expected a mapping of keys to values")
        pairs, seen = [], set()
        for name_node, value in node.value:
            name = name_node.value
            if not isinstance(name, str):
                self.fail(name_node, key, "a key must be a word")
            if name in seen:
                self.fail(name_node, _under(key, name), "appears twice")
            seen.add(name)
            pairs.append((name, name_node, value))
        return pairs

    def _dataclass(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        if node.tag == NULL:
            return base  # `bulk:` without a value inherits everything
        known, hints = _keys_of(kind)
        changes: dict[str, Any] = {}
        pairs = self._pairs(node, key)
        if hasattr(kind, "RENAMED"):
            pairs = self._with_new_names(pairs, kind.RENAMED, key)
        # Overrides start from the other values of the mapping.
        pairs.sort(key=lambda pair: pair[0] in known and "overrides" in known[pair[0]].metadata)
        for name, name_node, value_node in pairs:
            where = _under(key, name)
            if name not in known:
                self.fail(name_node, where, f"unknown key; {_suggest(name, known)}")
            field = known[name]
            start = getattr(base, field.name)
            if "overrides" in field.metadata:
                start = replace(base, **changes).item()
            value = self.read(value_node, hints[field.name], start, where)
            self._limits(value_node, field, value, where)
            changes[field.name] = value
        return replace(base, **changes)

    def _with_new_names(self, pairs: list[_Pair], renamed: Mapping[str, str], key: str) -> list[_Pair]:
        """``pairs`` with each old key under its new name, in a section where the new name has a dot."""
        found = {pair[0]: pair for pair in pairs if pair[0] not in renamed}
        for name, name_node, value in pairs:
            if name not in renamed:
                continue
            old, new = _under(key, name), _under(key, renamed[name])
            section, _, inner = renamed[name].partition(".")
            current = found.get(section)
            if not inner:
                added, taken = value, current is not None
            else:
                given = []
                if current is not None and current[2].tag != NULL:
                    given = self._pairs(current[2], _under(key, section))
                taken = any(each == inner for each, _, _ in given)
                word = yaml.ScalarNode(STR, inner, name_node.start_mark)
                items = [*((each, item) for _, each, item in given), (word, value)]
                added = yaml.MappingNode(MAP, items, name_node.start_mark)
            if taken:
                self.fail(name_node, old, f"is the old name of {new}, which is set too")
            found[section] = (section, name_node, added)
            self._old_names[new] = old
            line = name_node.start_mark.line + 1
            self.deprecated.append(f"{self.path}:{line}: {old} is deprecated: use {new}")
        return list(found.values())

    def _named(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        """A mapping whose names the user chooses. Dataclass values inherit from ``default``, unless their class says no."""
        item = typing.get_args(kind)[1]
        pairs = self._pairs(node, key)
        result = dict(base)
        inherits = is_dataclass(item) and getattr(item, "INHERITS_DEFAULT", True)
        if inherits:
            pairs.sort(key=lambda pair: pair[0] != "default")
        first: yaml.Node | None = None
        for name, _, value in pairs:
            inherited = result.get("default", _default_of(item)) if inherits else _default_of(item)
            if name == "default" and inherits:
                first = value
            elif first is not None:
                value = _with_overrides(value, first, item)
            result[name] = self.read(value, item, inherited, _under(key, name))
        return result

    def _union(self, node: yaml.Node, kind: Any, base: Any, key: str) -> Any:
        options = typing.get_args(kind)
        if type(None) in options and node.tag == NULL:
            return None
        kinds = [option for option in options if option is not type(None)]
        if IPv4Network in kinds and IPv6Network in kinds:
            return self._scalar(node, IPv4Network, key)  # of either version
        return self.read(node, kinds[0], base, key)

    def _scalar(self, node: yaml.Node, kind: Any, key: str) -> Any:
        try:
            return read_scalar(node, kind)
        except ValueError as exc:
            self.fail(node, key, str(exc))

    def _limits(self, node: yaml.Node, spec: Field[Any], value: Any, key: str) -> None:
        limits = spec.metadata
        if "choices" in limits and value not in limits["choices"]:
            if value in limits["later"]:
                self.fail(node, key, f"'{value}' is not available in this version")
            self.fail(node, key, f"found '{value}', allowed: {', '.join(limits['choices'])}")
        if "least" in limits and value is not None and not limits["least"] <= value <= limits["most"]:
            self.fail(node, key, f"found {value}, allowed: {limits['least']} to {limits['most']}")


@cache
def _keys_of(kind: Any) -> tuple[dict[str, Field[Any]], dict[str, Any]]:
    """The fields of a dataclass by their keys, and their types by their names."""
    known = {f.name.rstrip("_"): f for f in fields(kind) if not f.metadata.get("hidden")}
    return known, typing.get_type_hints(kind)


def _with_overrides(node: yaml.Node, default: yaml.Node, kind: Any) -> yaml.Node:
    """``node`` with the overrides of ``default`` that it has not: they start from its own values."""
    if not is_dataclass(kind) or not isinstance(default, yaml.MappingNode):
        return node
    if not isinstance(node, yaml.MappingNode) and node.tag != NULL:
        return node
    names = {each.name for each in fields(kind) if "overrides" in each.metadata}
    items = list(node.value) if isinstance(node, yaml.MappingNode) else []
    names -= {name.value for name, _ in items}
    inherited = [(name, value) for name, value in default.value if name.value in names]
    if not inherited:
        return node
    return yaml.MappingNode(MAP, [*items, *inherited], node.start_mark, node.end_mark)


def _default_of(kind: Any) -> Any:
    """The value that an item of a list inherits from."""
    return kind() if isinstance(kind, type) and is_dataclass(kind) else None


def _under(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean '{close[0]}'?" if close else f"allowed: {', '.join(sorted(known))}"
