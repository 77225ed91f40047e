"""From the classified rows of a list to the envelopes of a plan, in the order of sending.

``turn`` is a hash of the key: the envelopes of each provider are spread over the campaign, so that none receives them in bursts.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.submission_keys import KEY_DIGITS
from zonemta_py.pipeline.spark.tables import RECIPIENT
from zonemta_py.pipeline.transforms.blocks import Blocks
from zonemta_py.pipeline.transforms.classify import PLANNED, POSTPONED, Classifier, blocks_of, domains_of
from zonemta_py.pipeline.transforms.envelopes import BATCH_ROWS, BlockPacker, Packing
from zonemta_py.pipeline.transforms.normalise import FIELDS, SEND_AT

TURNS = 1 << 40  # ``turn`` is below this

_STRING = StringType()
PACKED = StructType(
    [
        *(StructField(name, _STRING) for name in ("kind", "zone", "provider")),
        StructField("recipients", ArrayType(RECIPIENT)),
        *(StructField(name, _STRING) for name in ("address", "reason")),
    ]
)
CLASSIFIED = StructType(
    [
        StructField("digest", LongType()),
        *(StructField(name, _STRING) for name in ("given", "address", "kind", "why", "provider")),
    ]
)


def packed_schema(names: Collection[str]) -> StructType:
    """PACKED, with FIELDS and SEND_AT if they are among ``names``."""
    return StructType([*PACKED, *(each for each in (FIELDS, SEND_AT) if each.name in names)])


def pack_rows(
    classifier: Classifier,
    packing: Packing,
    caps: Mapping[str, int] | None = None,
    blocks: Blocks | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Rows of PACKED, with FIELDS and SEND_AT where they are in the rows of ``arrange_rows``.

    A planned row has the ``recipients`` of an envelope; any other row the ``address`` as it is in the list, and the ``reason``.
    ``caps``: the most recipients of a provider; the others, by their digest, are postponed. ``blocks``: what has written the rows.
    """

    def transform(rows: DataFrame) -> DataFrame:
        names = blocks.columns if blocks else rows.columns
        extra = [each for each in (FIELDS, SEND_AT) if each.name in names]
        schema = packed_schema(names)
        read = blocks.read if blocks else iter
        if not caps:
            packed = partial(_classified_and_packed, classifier, packing, schema)
            return rows.mapInArrow(lambda each: packed(read(each)), schema)
        classified = StructType([*CLASSIFIED, *extra])
        marked = partial(_classified, classifier, packing.providers, classified)
        return (
            rows.mapInArrow(lambda each: marked(read(each)), classified)
            .transform(_postpone(caps))
            .mapInArrow(partial(_packed, packing, schema), schema)
        )

    return transform


def _postpone(caps: Mapping[str, int]) -> Callable[[DataFrame], DataFrame]:
    """Planned rows over the cap of their provider become postponed ones."""

    def transform(rows: DataFrame) -> DataFrame:
        is_capped = (F.col("kind") == PLANNED) & F.col("provider").isin(*caps)
        # All rows without a cap are spread by their digest: as one group, one task would get them.
        group = [F.when(is_capped, F.col("provider")), F.when(~is_capped, F.col("digest"))]
        nth = F.row_number().over(Window.partitionBy(*group).orderBy("digest", "address"))
        cap = F.create_map(*(F.lit(part) for pair in caps.items() for part in pair))[F.col("provider")]
        is_over = is_capped & (F.col("nth") > cap)
        return (
            rows.select("*", nth.alias("nth"))
            .withColumns(
                {
                    "kind": F.when(is_over, POSTPONED).otherwise(F.col("kind")),
                    "why": F.when(
                        is_over,
                        F.concat(F.lit("over the cap of "), "provider", F.lit(": "), cap.cast("string")),
                    ).otherwise(F.col("why")),
                }
            )
            .drop("nth")
        )

    return transform


def _classified_and_packed(
    classifier: Classifier, packing: Packing, schema: StructType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    packer = BlockPacker(packing, to_arrow_schema(schema))
    for block in classifier.blocks(batches):
        yield from packer.pack(block)


def _classified(
    classifier: Classifier,
    providers: Mapping[str, str],
    schema: StructType,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for block in classifier.blocks(batches):
        domains = domains_of(block.column("address").combine_chunks()).dictionary_encode()
        found = [providers.get(domain, domain) for domain in domains.dictionary.to_pylist()]
        names = pa.array(found, pa.string())
        named = block.append_column("provider", names.take(domains.indices))
        yield from named.select(schema.names).to_batches(max_chunksize=BATCH_ROWS)


def _packed(
    packing: Packing, schema: StructType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    packer = BlockPacker(packing, to_arrow_schema(schema))
    for block in blocks_of(batches):
        yield from packer.pack(block)


def with_keys(scope: str, slots: int) -> Callable[[DataFrame], DataFrame]:
    """Rows of ``tables.ENVELOPE`` from the planned rows of ``pack_rows``. ``scope``: of the keys. ``slots``: parts that are sent in parallel."""

    def transform(packed: DataFrame) -> DataFrame:
        send_at = F.col("send_at_ms") if "send_at_ms" in packed.columns else F.lit(None).cast("long")
        key = key_of(scope, F.sort_array("recipients.address"))
        return packed.select("*", key.alias("key")).select(
            "key",
            F.pmod(F.xxhash64("key"), F.lit(slots)).cast("int").alias("slot"),
            F.pmod(F.xxhash64("key", F.lit(2)), F.lit(TURNS)).alias("turn"),
            "zone",
            "provider",
            "recipients",
            send_at.alias("send_at_ms"),
        )

    return transform


def key_of(scope: str, addresses: Column) -> Column:
    """``submission_key`` as a column, of sorted addresses."""
    text = F.concat_ws("\0", F.lit(scope), addresses)
    return F.substring(F.sha2(text, 256), 1, KEY_DIGITS)
