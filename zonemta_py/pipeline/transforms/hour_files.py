"""Writes events into Parquet files by the hour of their time, as Spark names the directories of a partitioned table."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zonemta_py.pipeline.transforms.sums import HOUR_MS

GROUP_ROWS = 100_000  # that are read or left out together
WAITING_ROWS = 1_000_000  # in memory, of all hours
OPEN_MAX = 200  # files
ZSTD_LEVEL = 3  # Spark's; Arrow's is 1
RISING = ("seq", "time_ms", "created_ms")
UNIQUE = frozenset(
    (*RISING, "message", "recipient", "reply")
)  # a dictionary makes the file half as large again
NO_TIME_MS = -(1 << 62)
YEARS_MS = range(-62_135_596_800_000, 253_402_300_800_000)  # from 1 to 9999
NO_HOUR = "date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__"


class HourFiles:
    """The files of one task below ``directory``. ``compression``: of Parquet."""

    def __init__(self, directory: Path, schema: pa.Schema, compression: str) -> None:
        self._directory, self._schema, self._compression = directory, schema, compression
        self._name = f"part-{uuid4()}"
        self._waiting: dict[str, list[pa.Table]] = {}
        self._rows: dict[str, int] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.written: dict[str, int] = {}  # rows of each file, by its path below the directory

    def add(self, events: pa.Table) -> None:
        """Write ``events``, or keep them until there are enough for the hour."""
        times_ms = events.column("time_ms")
        hours = times_ms.fill_null(NO_TIME_MS).to_numpy() // HOUR_MS
        order = np.argsort(hours, kind="stable")
        if (hours[1:] < hours[:-1]).any():
            events = events.take(pa.array(order))
        found, begins = np.unique(hours[order], return_index=True)
        for hour, begin, end in zip(found, begins, [*begins[1:], len(order)], strict=True):
            self._keep(_directory_of(int(hour)), events.slice(begin, end - begin))
        if sum(self._rows.values()) >= WAITING_ROWS:
            self._write_all()

    def _keep(self, hour: str, events: pa.Table) -> None:
        self._waiting.setdefault(hour, []).append(events)
        self._rows[hour] = self._rows.get(hour, 0) + events.num_rows
        if self._rows[hour] >= GROUP_ROWS:
            self._write(hour)

    def _write(self, hour: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(hour)).combine_chunks()
        del self._rows[hour]
        if hour not in self._writers:
            if len(self._writers) >= OPEN_MAX:
                self._close_writers()
            self._writers[hour] = self._opened(hour)
        self._writers[hour].write_table(rows, row_group_size=rows.num_rows)
        self.written[self._path(hour)] += rows.num_rows

    def _opened(self, hour: str) -> pq.ParquetWriter:
        path = self._path(hour)
        self.written[path] = 0
        file = self._directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        names = self._schema.names
        return pq.ParquetWriter(
            file,
            self._schema,
            compression=self._compression,
            compression_level=ZSTD_LEVEL if self._compression == "zstd" else None,
            use_dictionary=[name for name in names if name not in UNIQUE],
            column_encoding=dict.fromkeys(RISING, "DELTA_BINARY_PACKED"),
            store_schema=False,
        )

    def _path(self, hour: str) -> str:
        return f"{hour}/{self._name}.parquet"

    def _write_all(self) -> None:
        for hour in list(self._waiting):
            self._write(hour)

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._name = f"part-{uuid4()}"  # no file is written again

    def close(self) -> None:
        """Write what waits. After an exception it is left out: the files are of no use then."""
        self._write_all()
        self._close_writers()


def _directory_of(hour: int) -> str:
    if hour * HOUR_MS not in YEARS_MS:
        return NO_HOUR
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
    return f"date={time:%Y-%m-%d}/hour={time.hour}"
