"""VERP: envelope senders that contain the recipient, so that a bounce identifies it. Pure.

Source: qmail's addresses(5) (``owner-@host-@[]``) and its double bounce sender ``#@[]``.
"""

from zonemta_py.smtp.address import AddressError, strict

DOUBLE_BOUNCE = "#@[]"  # the sender of a report about a report; mail is never sent to it
_SUFFIX = "-@[]"


def base(sender: str) -> str:
    """``owner-@host`` for ``owner-@host-@[]``; any other sender unchanged."""
    return sender[: -len(_SUFFIX)] if is_verp(sender) else sender


def is_verp(sender: str) -> bool:
    """True if ``sender`` has qmail's form for expansion, ``owner-@host-@[]``."""
    return len(sender) > len(_SUFFIX) and sender.endswith(_SUFFIX)


def expand(sender: str, recipient: str) -> str:
    """The sender of a transaction with the single recipient ``recipient``.

    ``owner-@host-@[]`` becomes ``owner-user=domain@host``; any other address ``local@host``
    becomes ``local+user=domain@host``. The null sender and DOUBLE_BOUNCE are not changed.

    What RFC 5321 would not allow (quoted local parts, over 64 bytes) is not expanded: ``owner-@host`` or ``local@host``.
    A report to that comes back, but does not name the recipient.
    """
    if sender in ("", DOUBLE_BOUNCE):
        return sender
    local, _, host = base(sender).rpartition("@")
    user, _, domain = recipient.rpartition("@")
    between = "" if is_verp(sender) else "+"
    expanded = f"{local}{between}{user}={domain}@{host}"
    try:
        strict(expanded)
    except AddressError:
        return base(sender)
    return expanded


def contract(address: str, sender: str) -> str:
    """The recipient in ``address``, if ``address`` is an expansion of ``sender``; else empty."""
    if sender in ("", DOUBLE_BOUNCE):
        return ""
    local, _, host = base(sender).rpartition("@")
    found, _, at = address.rpartition("@")
    begin = local if is_verp(sender) else f"{local}+"
    if at.lower() != host.lower() or not found.startswith(begin):
        return ""
    user, separator, domain = found[len(begin) :].rpartition("=")
    return f"{user}@{domain}" if separator and user and domain else ""
