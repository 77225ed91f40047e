"""The files of the relay's own keys in the filesystem store. Pure: every key has one path, and no two have the same.

    meta/sending/…/192.0.2.1/   →   data/.relay/meta/sending/…/192.0.2.1/%v

Parts of a key are percent-encoded. No encoded part has a ``%`` that two hex digits do not follow, so that names can have marks
with one: LEAF ends the name of a file, so that ``a`` and ``a/b`` can both be keys; CONTINUED one that goes on in the next
directory, because names have at most 255 bytes; EMPTY is an empty part that is not the last one. Earlier versions wrote files
without LEAF, and lost the ``/`` at the end of a key.
"""

from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote

from zonemta_py.queue.format import keys

RELAY = "data/.relay"
LEAF, CONTINUED, EMPTY = "%v", "%c", "%e"
TEMPORARY = "%n"  # the end of the name of a file before its rename
TEMPORARY_EARLIER = ".new"  # of an earlier version
NAME_MAX = 200  # characters of a part in one name
_DOTS = {".": "%2E", "..": "%2E%2E"}
# How many "/" the keys of a space have whose last part may be empty.
_SLASHES = ((keys.META_SENDING, 6), (keys.META_SENDING_STATE, 4), (keys.META_LIMIT, 6))


def relay_path(key: bytes) -> str:
    """Return the path of the file for a key of the relay's own."""
    *parents, last = (quote(part, safe="") for part in key.decode().split("/"))
    names = [name for part in parents for name in _directories(part)]
    *through, name = _pieces(last)
    return "/".join((RELAY, *names, *(f"{each}{CONTINUED}" for each in through), f"{name}{LEAF}"))


def relay_key(names: Iterable[str]) -> bytes:
    """Return the key of the file whose path below RELAY has these ``names``, of this or an earlier version."""
    parts, begun = [], ""
    for name in names:
        if name.endswith(CONTINUED):
            begun += name.removesuffix(CONTINUED)
            continue
        parts.append("" if name == EMPTY else unquote(begun + name.removesuffix(LEAF)))
        begun = ""
    key = "/".join(parts).encode()
    lost = any(key.startswith(space) and key.count(b"/") < slashes for space, slashes in _SLASHES)
    return key + b"/" if lost else key


def _directories(part: str) -> Iterator[str]:
    if not part:
        yield EMPTY
        return
    *through, name = _pieces(part)
    yield from (f"{each}{CONTINUED}" for each in through)
    yield _DOTS.get(name, name)


def _pieces(part: str) -> list[str]:
    return [part[at : at + NAME_MAX] for at in range(0, len(part), NAME_MAX)] or [""]
