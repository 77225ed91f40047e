"""Authors of a message; what each form is allowed to say is in tests/intake/test_tenants.py."""

import pytest

from zonemta_py.smtp.authors import Unreadable, author_addresses
from zonemta_py.smtp.headers import scan


@pytest.mark.parametrize(
    "value",
    [
        b'"' + b'\\"' * 400_000,  # at once: each mark could begin a quoted string that has no end
        b"(" * 400_000 + b" a@b.example",
        "=?\u00e9?q?abc?= <a@b.example>".encode(),
    ],
    ids=["open quote", "open comments", "charset"],
)
def test_values_that_are_not_read(value: bytes) -> None:
    header = b"From: " + value + b"\r\n"
    with pytest.raises(Unreadable):
        author_addresses(header, scan(header)[0])
