"""YAML to ``Config``, or one ConfigError with file, line, key, what was found and what is allowed.

With ``config.reader`` the adapter of PyYAML: documents are composed to nodes, which have line numbers.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from typing import Any, TypeVar

import yaml

from zonemta_py.config.checks import check
from zonemta_py.config.reader import MAP, NULL, STR, Reader
from zonemta_py.config.schema import Config
from zonemta_py.config.tenants import TenantSettings
from zonemta_py.core.errors import ConfigError

log = logging.getLogger(__name__)


# libyaml's composer, which most builds of PyYAML have, takes a tenth of the time.
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_WITHOUT_PATHS = (str, int, float, type(None), TenantSettings)  # there may be 10,000 tenants


T = TypeVar("T")


def load_config(path: Path | str) -> Config:
    """The configuration in ``path``; relative paths in it start at the directory of the file.

    Logs a warning for each deprecated key. Raises ConfigError.
    """
    path = Path(path)
    config = parse_config(read_text(path), path)
    for warning in config.deprecated:
        log.warning("%s", warning)
    return config


def queue_directory(path: Path) -> Path | None:
    """The queue's directory by a file that may be wrong elsewhere; None: the file does not tell."""
    try:
        document = plain(read_text(path), str(path)) or {}
        name = (document.get("queue") or {}).get("directory", Config().queue.directory)
        return path.parent / Path(name)
    except (ConfigError, AttributeError, TypeError):
        return None


def read_text(path: Path) -> str:
    """The text of the file ``path``. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc


def read_document(path: Path, kind: type[T]) -> tuple[T, Reader]:
    """A YAML file as a dataclass, and the reader that knows its lines. Raises ConfigError, for an empty file, too.

    A file that was cut to nothing by accident would remove every limit without a word.
    """
    return parse_document(read_text(path), path, kind, may_be_empty=False)


def parse_document(
    text: str, path: Path, kind: type[T], key: str = "", *, may_be_empty: bool = True
) -> tuple[T, Reader]:
    """As ``read_document``, of a text that ``path`` names in errors.

    ``kind`` may be a tuple of dataclasses, for a list; ``key`` is in front of all keys then.
    """
    node, reader = _composed(text, path), Reader(path)
    if not may_be_empty and (node is None or node.tag == NULL):
        raise ConfigError(f"{path}: the file is empty; name no file instead")
    try:
        value: T = kind() if node is None else reader.read(node, kind, kind(), key)
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply") from exc
    return value, reader


def plain(text: str, where: str) -> Any:
    """The plain values of a YAML text. Raises ConfigError with ``where`` in front."""
    try:
        return yaml.safe_load(text)
    except (ValueError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def with_key(text: str, path: Path, name: str, value: str) -> str:
    """The document ``text`` with the YAML ``value`` at the dotted key ``name``. Raises ConfigError.

    All other values stay as they are written: YAML takes the word off, a mode of TLS, for a boolean.
    """
    root = node = _mapping(_composed(text, path))
    *parents, key = name.split(".")
    for part in parents:
        if node is None:
            break
        # Another key may be an alias of the same node: that stays as it is.
        found = _mapping(next((each for word, each in node.value if word.value == part), None))
        if found is not None:
            node.value = [pair for pair in node.value if pair[0].value != part]
            node.value.append((yaml.ScalarNode(STR, part), found))
        node = found
    if root is None or node is None:
        raise ConfigError(f"--set {name}={value}: there is no such key in {path}")
    node.value = [pair for pair in node.value if pair[0].value != key]
    new = _composed(value, Path(f"--set {name}"))
    if new is not None:
        node.value.append((yaml.ScalarNode(STR, key), new))
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True))


def _mapping(node: yaml.Node | None) -> yaml.MappingNode | None:
    """A copy of a mapping, an empty one for no value; None for anything else."""
    if node is None or node.tag == NULL:
        return yaml.MappingNode(MAP, [])
    if not isinstance(node, yaml.MappingNode):
        return None
    return yaml.MappingNode(node.tag, list(node.value), flow_style=node.flow_style)


class _Written(yaml.SafeDumper):
    """Without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(values: Any) -> str:
    """Plain values as a YAML document, in which equal parts are written out."""
    return str(
        yaml.dump(values, Dumper=_Written, sort_keys=False, default_flow_style=False, allow_unicode=True)
    )


def parse_config(text: str, path: Path, included: Sequence[tuple[str, str]] | None = None) -> Config:
    """The configuration in ``text``; ``path`` names it in errors and is the start of relative paths.

    ``included``: paths and texts of the files that it includes; None to read them. ``Config.deprecated`` has a
    warning for each deprecated key. Raises ConfigError.
    """
    reader = Reader(path)
    node = _composed(text, path)
    patterns = _take_includes(reader, node)
    if included is None:
        included = _read_included(reader, patterns, path.parent)
    try:
        config = Config() if node is None else reader.read(node, Config, Config(), "")
        tenants = dict(config.tenants)
        for name, content in included:
            _add_tenants(tenants, reader, content, Path(name))
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from exc
    config = replace(config, tenants=tenants)
    check(config, reader.complain)
    absolute: Config = _anchored(config, path.parent)
    return replace(
        absolute, text=text, path=str(path), included=tuple(included),
        deprecated=tuple(reader.deprecated),
    )  # fmt: skip


def located(config: Config, text: str) -> str:
    """``text``, which begins with a key of ``config``, with the file and the line of the key in front, if it is of a file."""
    if not config.path:
        return text
    key, node, line = text.partition(": ")[0], _composed(config.text, Path(config.path)), 0
    for part in re.findall(r"[^.\[\]]+", key):
        if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
            continue
        pair = next((each for each in _items(node) if each[0].value == part), None)
        if pair is None:
            break
        line, node = pair[0].start_mark.line + 1, pair[1]
    return f"{config.path}:{line}: {text}" if line else f"{config.path}: {text}"


def _composed(text: str, path: Path, loader: type = _LOADER) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=loader)
    except (yaml.YAMLError, UnicodeEncodeError) as exc:
        if loader is not yaml.SafeLoader:
            return _composed(text, path, yaml.SafeLoader)  # its errors name the place better
        mark = getattr(exc, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not YAML: {getattr(exc, 'problem', exc)}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from exc


def _take_includes(reader: Reader, document: yaml.Node | None) -> tuple[str, ...]:
    """Remove ``tenants.include`` from ``document``; returns its patterns of paths, of which one needs no list."""
    patterns: tuple[str, ...] = ()
    for name, tenants in _items(document):
        for key, value in _items(tenants) if name.value == "tenants" else ():
            if key.value == "include":
                tenants.value.remove((key, value))
                kind = tuple[str, ...] if isinstance(value, yaml.SequenceNode) else str
                found = reader.read(value, kind, (), "tenants.include")
                patterns += found if isinstance(found, tuple) else (found,)
    return patterns


def _items(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    """The pairs of a mapping; empty for other nodes."""
    return list(node.value) if isinstance(node, yaml.MappingNode) else []


def _read_included(reader: Reader, patterns: Sequence[str], directory: Path) -> list[tuple[str, str]]:
    """Path and text of each file that ``patterns`` match, in order. Raises ConfigError."""
    found: list[tuple[str, str]] = []
    for pattern in patterns:
        paths = sorted(glob(pattern, root_dir=directory))  # noqa: PTH207 - it may be absolute
        if not paths and not has_magic(pattern):
            reader.complain("tenants.include", f"no file {directory / pattern}")
        for each in paths:
            path = directory / each
            if not path.is_file():  # the reader of a pipe would wait
                reader.complain("tenants.include", f"{path} is no file that can be read")
            try:
                found.append((str(path), path.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError) as exc:
                reader.complain("tenants.include", f"{path} cannot be read: {exc}")
    return found


def _add_tenants(tenants: dict[str, TenantSettings], main: Reader, text: str, path: Path) -> None:
    """Add the tenants in an included file."""
    node = _composed(text, path)
    if node is None:
        return
    reader = Reader(path)
    added = reader.read(node, dict[str, TenantSettings], {}, "tenants")
    for name in added:
        if name in tenants:
            reader.complain(f"tenants.{name}", f"appears in {main.file_of(f'tenants.{name}')} too")
    main.adopt(reader, (f"tenants.{name}" for name in added))
    tenants.update(added)


def _anchored(value: Any, directory: Path) -> Any:
    """``value`` with every relative path in it put under ``directory``; itself when there is none."""
    if isinstance(value, _WITHOUT_PATHS):
        return value
    if isinstance(value, Path):
        return directory / value
    if is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in fields(value)}
        new = {name: _anchored(item, directory) for name, item in old.items()}
        changed = {name: item for name, item in new.items() if item is not old[name]}
        return replace(value, **changed) if changed else value
    if isinstance(value, dict):
        return {name: _anchored(item, directory) for name, item in value.items()}
    if type(value) is tuple:
        return tuple(_anchored(item, directory) for item in value)
    return value


# ---- The files of data that come with the relay: of an installed package, or ``config/`` of a checkout.

_IN_PACKAGE = Path(__file__).parent / "shipped"  # the wheel puts ``config/*.yaml`` there
_IN_CHECKOUT = Path(__file__).parents[2] / "config"


def shipped_file(name: str) -> Path:
    """The path of a file, such as ``providers.yaml``."""
    found = _IN_PACKAGE / name
    return found if found.exists() else _IN_CHECKOUT / name
