"""The exchanges of AUTH: what is asked, and what the answers come to. Pure.

An exchange is a generator: it yields challenges (base64), is sent the client's lines, and returns
name and password, or None when the client gives up or answers nonsense.

Source: RFC 4954 (AUTH), RFC 4616 (PLAIN); LOGIN as everybody does it.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Generator

Credentials = tuple[str, str]  # name and password
Exchange = Generator[str, str | None, Credentials | None]


def plain(initial: str) -> Exchange:
    """PLAIN: authorisation identity (not used), name and password at once."""
    response = _decoded(initial or ((yield "") or ""))
    parts = response.split("\0") if response is not None else []
    return (parts[1], parts[2]) if len(parts) == 3 else None


def login(initial: str) -> Exchange:
    """LOGIN: name and password one after the other."""
    name = _decoded(initial or ((yield _encoded("Username:")) or ""))
    if name is None:
        return None
    password = _decoded((yield _encoded("Password:")) or "")
    return (name, password) if password is not None else None


MECHANISMS: dict[str, Callable[[str], Exchange]] = {"PLAIN": plain, "LOGIN": login}


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _decoded(answer: str) -> str | None:
    """The text of an answer or initial response (``=``: empty); None: given up, or not base64."""
    answer = answer.strip()
    if answer == "*":
        return None
    try:
        return b64decode("" if answer == "=" else answer, validate=True).decode("utf-8", "replace")
    except ValueError:
        return None
