"""Arrow batches from rows of Python."""

import pytest

schema = pytest.importorskip("zonemta_py.pipeline.spark.schema")


def test_record_batch() -> None:
    row = ("june", "k", "r:25", "a@x.example", "accepted", 250, "Ok", ["m"], False, 1)
    batch = schema.record_batch([row], schema.LEDGER)
    assert batch.schema.names == schema.LEDGER.names
    assert tuple(batch.to_pylist()[0].values()) == row


def test_no_rows() -> None:
    batch = schema.record_batch([], schema.LEDGER)
    assert (batch.num_rows, batch.schema.names) == (0, schema.LEDGER.names)
