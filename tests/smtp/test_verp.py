"""Envelope senders that contain the recipient."""

import pytest

from zonemta_py.smtp.address import contract_verp, expand_verp, normalise


@pytest.mark.parametrize(
    ("sender", "recipient", "expanded"),
    [
        ("list@s.example", "joe@d.example", "list+joe=d.example@s.example"),
        ("list-@s.example-@[]", "joe@d.example", "list-joe=d.example@s.example"),
        ("", "joe@d.example", ""),
        ("#@[]", "joe@d.example", "#@[]"),
    ],
)
def test_an_expansion_names_the_recipient(sender: str, recipient: str, expanded: str) -> None:
    assert expand_verp(sender, recipient) == expanded
    assert contract_verp(expanded, sender) == (recipient if expanded not in ("", "#@[]") else "")


@pytest.mark.parametrize(
    ("sender", "recipient", "kept"),
    [
        ('"a b"@s.example', "x@d.example", '"a b"@s.example'),
        ("s@s.example", '"x y"@d.example', "s@s.example"),
        ("s@s.example", "x@[192.0.2.1]", "s@s.example"),
        ("s@s.example", f"{'a' * 60}@d.example", "s@s.example"),
        ("list-@s.example-@[]", f"{'a' * 60}@d.example", "list-@s.example"),
    ],
)
def test_what_would_be_no_address_is_not_expanded(sender: str, recipient: str, kept: str) -> None:
    """A server would refuse it with the message; and the recipient is not read from the address of a report."""
    assert expand_verp(sender, recipient) == normalise(kept) == kept
    assert contract_verp(kept, sender) == ""
