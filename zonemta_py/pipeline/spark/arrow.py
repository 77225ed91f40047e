"""From rows of Python to Arrow, as ``mapInArrow`` wants them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def batch_of(rows: Sequence[tuple[Any, ...]], schema: StructType) -> pa.RecordBatch:
    """``rows`` with the columns of ``schema``, in its order."""
    arrow = to_arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(arrow)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
