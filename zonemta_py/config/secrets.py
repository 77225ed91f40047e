"""Secrets that a configuration keeps in files of their own."""

from pathlib import Path

from zonemta_py.core.errors import ConfigError


def read_token(path: Path | None) -> str:
    """The first line of a file, empty without one. Raises ConfigError."""
    if path is None:
        return ""
    try:
        token = path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    if not token:
        raise ConfigError(f"{path}: the first line is empty")
    return token
