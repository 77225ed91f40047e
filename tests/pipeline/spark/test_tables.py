"""Arrow batches from rows of Python."""

import pytest

tables = pytest.importorskip("zonemta_py.pipeline.spark.tables")


def test_record_batch() -> None:
    row = ("june", "k", "r:25", "a@x.example", "accepted", 250, "Ok", ["m"], True, 1, 2)
    batch = tables.record_batch([row], tables.LEDGER)
    assert batch.schema.names == tables.LEDGER.names
    assert tuple(batch.to_pylist()[0].values()) == row


def test_no_rows() -> None:
    batch = tables.record_batch([], tables.LEDGER)
    assert (batch.num_rows, batch.schema.names) == (0, tables.LEDGER.names)
