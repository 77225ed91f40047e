"""What a name that does not exist may have been meant as."""

import difflib
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address

SHOWN = 20


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """``no zone 'blk'; did you mean 'bulk'?``, else with the names that there are."""
    return f"no {kind} '{name}'; {meant(name, known)}"


def meant(name: str, known: Iterable[str]) -> str:
    """``did you mean 'bulk'?``, or ``there is bulk, default``."""
    names = sorted(known)
    close = [] if _is_address(name) else difflib.get_close_matches(name, names, 1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return f"there is {', '.join(names[:SHOWN]) or 'none'}{more}"


def _is_address(name: str) -> bool:
    """Whether it is an IP address: all of them are similar."""
    with suppress(ValueError):
        ip_address(name)
        return True
    return False
