"""The files of data that come with the relay: of an installed package, or ``config/`` of a checkout."""

from pathlib import Path

_IN_PACKAGE = Path(__file__).parent / "shipped"  # the wheel puts ``config/*.yaml`` there
_IN_CHECKOUT = Path(__file__).parents[2] / "config"


def shipped_file(name: str) -> Path:
    """The path of a file, such as ``providers.yaml``."""
    found = _IN_PACKAGE / name
    return found if found.exists() else _IN_CHECKOUT / name
