"""JSON of strangers."""

import pytest

from zonemta_py.core.codec import from_json


def test_a_document_that_is_nested_too_deeply() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(b"[" * 60_000)
