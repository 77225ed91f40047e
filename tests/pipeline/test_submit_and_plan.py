"""One list for ``submit`` and ``pipeline plan``: both have the same recipients, spelled alike, and refuse the same rows."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.campaigns import LETTER, plan, write_list
from zonemta_py.config.endpoints import HostPort
from zonemta_py.sink.server import Sink
from zonemta_py.submit.client import ListSubmission, SubmissionSettings, SubmissionSummary
from zonemta_py.submit.merge import Template
from zonemta_py.submit.recipients import read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIVEN = [
    "Ann@x.example", "ann@x.example", "ANN@X.Example", "ann@x.example", " ann@x.example\t", "\u200bann@x.example\ufeff",
    "ann@x.example.", "ann.@x.example", "Ann.@x.example", ".ann@x.example", "an..n@x.example", "ann@.x.example", "ann@x..example",
    "u@b\u00fccher.example", "U@B\u00dcCHER.example", "u@xn--bcher-kva.example", "u@XN--BCHER-KVA.example", "u@b\u00fccher.example.",
    "s@stra\u00dfe.example", "s@strasse.example", "x@\u65e5\u672c.example", "x@\u65e5\u672c\u3002example", "x@-a.example",
    '"a b"@x.example', '"A B"@x.example', '"a\\ b"@x.example', '"ann"@x.example', '"a@b"@x.example', '"a,b"@x.example', '"a"b@x.example', '"a@x.example',
    "Zo\u00eb@x.example", "ZO\u00cb@x.example", "zoe\u0308@x.example", "\u0130@x.example", "i\u0307@x.example", "i@x.example", "I@x.example",
    "\u03a3@x.example", "\u03c3@x.example", "\u03c2@x.example", "\u212a@x.example", "k@x.example", "STRASSE@x.example", "stra\u00dfe@x.example",
    "a_b@x_y.example", "A_B@X_Y.example", "a@[127.0.0.1]", "A@[127.0.0.1]", "a@[IPv6:::1]", "a@[ipv6:::1]", "a@[1.2.3]",
    "a+tag@x.example", "a+TAG@x.example", "<a@x.example>", "Ann <a@x.example>", "a@b@x.example", "a@x.example, b@x.example", "a b@x.example",
    "\u202ea@x.example", "a@localhost", "a", "@x.example", "a@", "", f"{'l' * 64}@x.example", f"{'L' * 64}@x.example", f"{'l' * 330}@x.example",
]  # fmt: skip


async def submitted(path: Path, *, case_sensitive: bool) -> tuple[list[str], SubmissionSummary]:
    """The recipients that a relay gets of ``submit``, and its counts."""
    sink = Sink(keep=True)
    settings = SubmissionSettings(
        sender="n@example.com",
        template=Template(LETTER),
        relay=HostPort("127.0.0.1", await sink.start()),
        ip="127.0.0.1",
        ehlo="me.example",
        tls="off",
        credentials=None,
        connections=1,
        recipients_per_message=10,
        resend_uncertain=False,
        case_sensitive=case_sensitive,
    )
    summary = await ListSubmission(settings, read_rows(str(path)), None, lambda count: None).run()
    recipients = [each for message in sink.messages for each in message.recipients]
    await sink.close()
    return recipients, summary


@pytest.mark.parametrize("case_sensitive", [False, True])
def test_the_same_recipients(spark: "SparkSession", tmp_path: Path, case_sensitive: bool) -> None:
    listed = write_list(tmp_path / "list.csv", [[each, "x"] for each in GIVEN])
    manifest = plan(spark, listed, tmp_path / "plan", case_sensitive=case_sensitive)
    found = spark.read.parquet(f"{tmp_path / 'plan'}/envelopes").collect()
    planned = [each["address"] for envelope in found for each in envelope["recipients"]]
    recipients, summary = asyncio.run(submitted(listed, case_sensitive=case_sensitive))
    assert sorted(recipients) == sorted(planned)
    assert len(set(planned)) == len(planned) == manifest.planned == summary.counts["accepted"]
    assert manifest.duplicate == summary.counts["duplicate"]
    assert manifest.rejected == summary.counts["invalid"]
    assert {"Ann@x.example", "u@xn--bcher-kva.example", '"a b"@x.example', "Zo\u00eb@x.example"} <= set(
        planned
    )
    assert ("ann@x.example" in planned) == case_sensitive
