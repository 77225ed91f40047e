"""Senders that name the recipient, so that a bounce says by itself whom it is about. Pure.

Source: qmail's addresses(5) (``owner-@host-@[]``) and its double bounce sender ``#@[]``.
"""

DOUBLE_BOUNCE = "#@[]"  # the sender of a report about a report; nothing is ever sent to it
_SUFFIX = "-@[]"


def base(sender: str) -> str:
    """Who is meant: ``owner-@host`` for ``owner-@host-@[]``, every other sender itself."""
    return sender[: -len(_SUFFIX)] if is_verp(sender) else sender


def is_verp(sender: str) -> bool:
    """Whether ``sender`` asks by itself to be expanded for each recipient."""
    return len(sender) > len(_SUFFIX) and sender.endswith(_SUFFIX)


def expand(sender: str, recipient: str) -> str:
    """The sender of a transaction for ``recipient`` alone.

    ``owner-@host-@[]`` becomes ``owner-user=domain@host``; any other address ``local@host``
    becomes ``local+user=domain@host``. The null sender and DOUBLE_BOUNCE stay what they are.
    """
    if sender in ("", DOUBLE_BOUNCE):
        return sender
    local, _, host = base(sender).rpartition("@")
    user, _, domain = recipient.rpartition("@")
    between = "" if is_verp(sender) else "+"
    return f"{local}{between}{user}={domain}@{host}"


def contract(address: str, sender: str) -> str:
    """The recipient that ``address`` names, if it is what ``expand`` makes of ``sender``; else empty."""
    if sender in ("", DOUBLE_BOUNCE):
        return ""
    local, _, host = base(sender).rpartition("@")
    found, _, at = address.rpartition("@")
    begin = local if is_verp(sender) else f"{local}+"
    if at.lower() != host.lower() or not found.startswith(begin):
        return ""
    user, separator, domain = found[len(begin) :].rpartition("=")
    return f"{user}@{domain}" if separator and user and domain else ""
