"""Which texts are addresses, and the form of most of them, which need no further check. Pure."""

from zonemta_py.smtp.address import AddressError, normalise

# A normalised address already, if it has at most PLAIN_MAX characters: then its parts have not too many either.
_ATOM, _LABEL = r"[A-Za-z0-9_+=\-]+", r"[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?"
PLAIN_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})+"
PLAIN = rf"{_ATOM}(?:\.{_ATOM})*@{PLAIN_DOMAIN}"
PLAIN_MAX = 64

UNDECODED = "\ufffd"  # what a reader puts in place of bytes that are not UTF-8


def address_or_reason(text: str) -> tuple[str | None, str | None]:
    """The normalised address, or None and the reason why ``text`` is none."""
    if UNDECODED in text:
        return None, "not valid UTF-8"
    try:
        return normalise(text), None
    except AddressError as exc:
        return None, str(exc) if text else "no address"
