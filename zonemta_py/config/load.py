"""YAML to ``Config``, or one ConfigError with file, line, key, what was found and what is allowed.

With ``config.reader`` the adapter of PyYAML: documents are composed to nodes, which have line numbers.
"""

import logging
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from zonemta_py.config.checks import check
from zonemta_py.config.reader import Reader
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import ConfigError

log = logging.getLogger(__name__)


def load_config(path: Path | str) -> Config:
    """The configuration in ``path``; relative paths in it start at the directory of the file.

    Logs a warning for each deprecated key. Raises ConfigError.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc
    config = parse_config(text, path)
    for warning in config.deprecated:
        log.warning("%s", warning)
    return config


def load_plain(path: Path) -> Any:
    """Any YAML document as plain values, for files that are not configurations. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    return plain(text, str(path))


def plain(text: str, where: str) -> Any:
    """The plain values of a YAML text. Raises ConfigError with ``where`` in front."""
    try:
        return yaml.safe_load(text)
    except (ValueError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def to_yaml(values: Any) -> str:
    """Plain values as a YAML document."""
    return str(yaml.safe_dump(values, sort_keys=False, default_flow_style=False, allow_unicode=True))


def parse_config(text: str, path: Path) -> Config:
    """The configuration in ``text``; ``path`` names it in errors and is the start of relative paths.

    ``Config.deprecated`` has a warning for each deprecated key. Raises ConfigError.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not YAML: {getattr(exc, 'problem', exc)}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from exc
    reader = Reader(path)
    try:
        config = Config() if node is None else reader.read(node, Config, Config(), "")
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from exc
    check(config, reader.complain)
    absolute: Config = _anchored(config, path.parent)
    return replace(absolute, text=text, path=str(path), deprecated=tuple(reader.deprecated))


def _anchored(value: Any, directory: Path) -> Any:
    """``value`` with every relative path in it put under ``directory``."""
    if isinstance(value, Path):
        return directory / value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _anchored(getattr(value, f.name), directory) for f in fields(value)}
        )
    if isinstance(value, dict):
        return {name: _anchored(item, directory) for name, item in value.items()}
    if type(value) is tuple:
        return tuple(_anchored(item, directory) for item in value)
    return value
