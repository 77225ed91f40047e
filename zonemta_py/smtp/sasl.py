"""The SASL mechanisms of AUTH. Pure.

An exchange is a generator: it yields challenges (base64), receives the client's lines, and returns name
and password, or None when the client cancels or sends a malformed response.

Source: RFC 4954 (AUTH), RFC 4616 (PLAIN), draft-murchison-sasl-login (LOGIN).
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Generator

Credentials = tuple[str, str]  # name and password
Exchange = Generator[str, str | None, Credentials | None]


def plain(initial: str) -> Exchange:
    """PLAIN: authorisation identity, name and password in one response.

    A user may act for itself only: for another identity the password is dropped, which refuses it as wrong.
    """
    response = _decoded(initial or ((yield "") or ""))
    parts = response.split("\0") if response is not None else []
    if len(parts) != 3:
        return None
    identity, name, password = parts
    return (name, password) if identity in ("", name) else (name, "")


def login(initial: str) -> Exchange:
    """LOGIN: name and password in two responses."""
    name = _decoded(initial or ((yield _encoded("Username:")) or ""))
    if name is None:
        return None
    password = _decoded((yield _encoded("Password:")) or "")
    return (name, password) if password is not None else None


MECHANISMS: dict[str, Callable[[str], Exchange]] = {"PLAIN": plain, "LOGIN": login}


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _decoded(response: str) -> str | None:
    """The text of a response (``=``: empty), or None if it cancels (``*``) or is not base64."""
    response = response.strip()
    if response == "*":
        return None
    try:
        return b64decode("" if response == "=" else response, validate=True).decode("utf-8", "replace")
    except ValueError:
        return None
