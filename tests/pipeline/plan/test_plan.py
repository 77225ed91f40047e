"""Plans: every row is planned or left out, and the sums are right."""

import bz2
import gzip
import secrets
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import PERSONAL, plan, write_list
from zonemta_py.config.load import load_config, parse_config
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.plan.pack import submission_key
from zonemta_py.pipeline.plan.rows import Selection, parse_variants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def envelopes(spark: "SparkSession", output: Path) -> list[Any]:
    return spark.read.parquet(f"{output}/envelopes").collect()


def members_of(envelope: Any) -> list[str]:
    return sorted(recipient["address"] for recipient in envelope["recipients"])


def left_out(spark: "SparkSession", output: Path) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for row in spark.read.parquet(f"{output}/left_out").collect():
        found.setdefault(row["kind"], []).append((row["address"], row["reason"]))
    return found


def test_every_row_is_planned_or_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    rows = [
        ["a@Example.org", "A"], ["b@example.org", "B"], ["a@EXAMPLE.org", "again"], ["localonly", "C"], ["", "D"],
        ["x@bücher.example", "E"], ["x@xn--bcher-kva.example", "the same"], ["s@gone.example", "F"],
        ["t@suppressed.example", "G"], ['"quoted, comma"@x.example', "H"], ["l" * 330 + "@x.example", "I"],
        ["n@x.example", "a\nline and a \"quote\", a comma"], ["bad\ufffd@x.example", "J"], ["y" * 300_000, "K"],
    ]  # fmt: skip
    (tmp_path / "s.txt").write_text("s@gone.example, bounced\n@suppressed.example\n")
    listed = write_list(tmp_path / "list.csv", rows)
    manifest = plan(spark, listed, tmp_path / "plan", suppress=[str(tmp_path / "s.txt")])
    assert (manifest.input, manifest.planned) == (14, 5)
    assert (manifest.rejected, manifest.duplicate, manifest.suppressed) == (5, 2, 2)
    planned = {r["address"] for e in envelopes(spark, tmp_path / "plan") for r in e["recipients"]}
    assert planned == {
        "a@example.org", "b@example.org", "x@xn--bcher-kva.example", '"quoted, comma"@x.example', "n@x.example",
    }  # fmt: skip
    out = left_out(spark, tmp_path / "plan")
    assert sorted(out["suppressed"]) == [
        ("s@gone.example", "bounced"), ("t@suppressed.example", "suppressed"),
    ]  # fmt: skip
    reasons = {address[:20]: reason for address, reason in out["rejected"]}
    assert reasons["localonly"] == "an address is local@domain"
    assert reasons[""] == "no address"
    assert "address over 320 bytes" in reasons["l" * 20]
    assert reasons["bad\ufffd@x.example"] == "not valid UTF-8"
    assert {address for address, _ in out["duplicate"]} == {"a@EXAMPLE.org", "x@xn--bcher-kva.example"}


def test_envelopes(spark: "SparkSession", tmp_path: Path) -> None:
    """The limit of recipients is kept; large providers have envelopes of their own; keys and zones are right."""
    rows = [[f"{n}@gmail.com", ""] for n in range(500)] + [[f"{n}@d{n}.example", ""] for n in range(300)]
    rows += [[f"{n}@news.example", ""] for n in range(40)]
    config = parse_config(
        "zones: {default: {}, news: {}}\nrouting: [{recipient_domain: news.example, zone: news}]\n",
        Path("z.yaml"),
    )
    listed = write_list(tmp_path / "list.csv", rows)
    manifest = plan(spark, listed, tmp_path / "plan", recipients_per_message=20, config=config)
    found = envelopes(spark, tmp_path / "plan")
    assert len(found) == manifest.envelopes
    assert sum(len(e["recipients"]) for e in found) == manifest.planned == 840
    for envelope in found:
        members = [r["address"] for r in envelope["recipients"]]
        assert 1 <= len(members) <= 20
        assert envelope["key"] == submission_key(str(manifest.id), members)
        assert envelope["slot"] == 0, "840 recipients are one part"
        assert {m.endswith("@news.example") for m in members} == {envelope["zone"] == "news"}
        if envelope["provider"] == "google":
            assert all(m.endswith("@gmail.com") for m in members)
    assert sum(e["provider"] == "google" for e in found) == 25
    again = plan(spark, listed, tmp_path / "again", recipients_per_message=20, config=config)
    assert again.envelopes == manifest.envelopes
    others = envelopes(spark, tmp_path / "again")
    assert sorted(members_of(e) for e in others) == sorted(members_of(e) for e in found)
    assert not {e["key"] for e in others} & {e["key"] for e in found}, "a plan has keys of its own"


def test_once_per_campaign(spark: "SparkSession", tmp_path: Path) -> None:
    """The key of a recipient is the same in every plan of the campaign."""
    listed = write_list(tmp_path / "list.csv", [[f"{n}@x.example", ""] for n in range(30)])
    plan(spark, listed, tmp_path / "one", once_per="campaign")
    write_list(listed, [[f"{n}@x.example", ""] for n in range(31)])
    plan(spark, listed, tmp_path / "two", once_per="campaign")
    one, two = ({e["key"]: e["recipients"] for e in envelopes(spark, tmp_path / name)} for name in ("one", "two"))  # fmt: skip
    assert all(two[key] == each for key, each in one.items())
    assert (len(one), len(two)) == (30, 31)


def test_a_small_list_makes_few_messages(spark: "SparkSession", tmp_path: Path) -> None:
    rows = [[f"{n}@d{n}.example", ""] for n in range(500)] + [[f"{n}@gmail.com", ""] for n in range(500)]
    manifest = plan(spark, write_list(tmp_path / "l.csv", rows), tmp_path / "plan")
    assert (manifest.envelopes, manifest.slots) == (20, 1)


def test_providers_take_turns(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth of a slot has about a tenth of the envelopes of a provider."""
    monkeypatch.setattr("zonemta_py.pipeline.plan.job.secrets.token_hex", lambda size: "0" * 2 * size)
    rows = [[f"{n}@gmail.com", ""] for n in range(3000)] + [[f"{n}@web.de", ""] for n in range(1500)]
    plan(
        spark, write_list(tmp_path / "l.csv", rows), tmp_path / "plan", recipients_per_message=5, slots=2
    )
    for slot in (0, 1):
        here = sorted(
            (e for e in envelopes(spark, tmp_path / "plan") if e["slot"] == slot),
            key=lambda e: e["turn"],
        )
        tenth = len(here) // 10
        for part in range(10):
            counts = Counter(e["provider"] for e in here[part * tenth : (part + 1) * tenth])
            assert 0.4 < counts["google"] / tenth < 0.9


def test_personal_messages(spark: "SparkSession", tmp_path: Path) -> None:
    """One envelope for each recipient, with the fields; a row without a value is rejected."""
    listed = tmp_path / "list.jsonl"
    listed.write_text(
        '{"email":"a@x.example","name":"Änne"}\n{"email":"b@x.example","name":null}\n{"email":"c@x.example"}\n'
    )
    manifest = plan(spark, listed, tmp_path / "plan", message=PERSONAL)
    assert (manifest.planned, manifest.rejected, manifest.personal) == (1, 2, True)
    [envelope] = envelopes(spark, tmp_path / "plan")
    assert [(r["address"], r["fields"]) for r in envelope["recipients"]] == [
        ("a@x.example", {"name": "Änne"})
    ]
    assert {reason for _, reason in left_out(spark, tmp_path / "plan")["rejected"]} == {
        "no value for 'name'"
    }
    letter = PERSONAL.replace(b"{{name}}", b"{{name|you}}").replace(b"{{ name }}", b"{{ name | you }}")
    assert plan(spark, listed, tmp_path / "defaults", message=letter).planned == 3


def test_many_rows_with_one_address(spark: "SparkSession", tmp_path: Path) -> None:
    listed = tmp_path / "list.parquet"
    spark.range(200_000).selectExpr("'same@x.example' as email").write.parquet(str(listed))
    manifest = plan(spark, listed, tmp_path / "plan")
    assert (manifest.planned, manifest.duplicate) == (1, 199_999)


def test_jdbc(spark: "SparkSession", tmp_path: Path) -> None:
    url = f"jdbc:derby:{tmp_path}/db;create=true"
    rows = spark.createDataFrame([("a@x.example",), ("wrong",)], "email string")
    rows.write.format("jdbc").options(url=url, dbtable="people").save()
    manifest = plan(spark, Path(url), tmp_path / "plan", reader_options={"dbtable": "people"})
    assert (manifest.planned, manifest.rejected) == (1, 1)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("l.csv", "mail\na@x.example\n", "no column email or address or recipient; columns: mail"),
        ("l.csv", "", "the list is empty"),
        ("l.csv", "email\n", "the list is empty"),
        ("l.csv", "email,name\r\n\x1a", "the list is empty"),  # DOS's end of a file
        ("l.csv", 'email,"first\nname"\n', "the list is empty"),
        ("l.xls", "x", "found 'xls', expected .csv, "),
        ("l.csv", 'email,name\na@x.example,"A\nb@x.example,B\n', "l.csv: line 2: a quote is not closed"),
    ],
)
def test_a_bad_list(
    spark: "SparkSession", tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises((LocalError, ConfigError), match=problem):
        plan(spark, tmp_path / name, tmp_path / "plan")
    with pytest.raises(LocalError, match="there is no plan here"):
        from zonemta_py.pipeline.plan.request import read_manifest

        read_manifest(spark, str(tmp_path / "plan"))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_output_that_exists(spark: "SparkSession", tmp_path: Path, scheme: str) -> None:
    """A plan is replaced only on request, and never once it was sent; other files are never touched."""
    listed = write_list(tmp_path / "list.csv", [["a@x.example", ""]])
    output = f"{scheme}{tmp_path}/plan"
    first = plan(spark, listed, output)
    with pytest.raises(LocalError, match="--overwrite"):
        plan(spark, listed, output)
    assert plan(spark, listed, output, overwrite=True).id != first.id
    (tmp_path / "plan" / "ledger" / "run=1").mkdir(parents=True)
    with pytest.raises(LocalError, match="mail of this plan was sent"):
        plan(spark, listed, output, overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(LocalError, match=r"contains thesis\.txt"):
        plan(spark, listed, f"{scheme}{tmp_path}/mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_what_a_killed_run_left_is_replaced(spark: "SparkSession", tmp_path: Path) -> None:
    listed = write_list(tmp_path / "list.csv", [["a@x.example", ""]])
    plan(spark, listed, tmp_path / "plan")
    shutil.rmtree(tmp_path / "plan" / "manifest")
    (tmp_path / "plan" / "left_out" / "_temporary").mkdir()
    assert plan(spark, listed, tmp_path / "plan").planned == 1


def test_a_message_that_needs_a_column(spark: "SparkSession", tmp_path: Path) -> None:
    listed = write_list(tmp_path / "list.csv", [["a@x.example"]], head=("email",))
    with pytest.raises(LocalError, match="the message needs the column name"):
        plan(spark, listed, tmp_path / "plan", message=PERSONAL)
    with pytest.raises(LocalError, match=r"cannot be merged: \{\{email\}\}: MIME-Version cannot differ"):
        plan(spark, listed, tmp_path / "plan", message=b"MIME-Version: {{email}}\r\n\r\nx\r\n")


@pytest.mark.parametrize("name", ["l.tsv", "l.orc", "l.csv.gz", "l.jsonl.bz2", "lists", "table:people"])
def test_kinds_of_lists(spark: "SparkSession", tmp_path: Path, name: str) -> None:
    """Blanks around an address are removed alike from each."""
    given = "\u00a0\ufeff a@x.example\u00a0 "
    rows = spark.createDataFrame([(given, 'A "B"'), ("b@x.example", "C")], "email string, name string")
    source = name if name.startswith("table:") else f"{tmp_path}/{name}"
    cells = f'email,name\n{given},"A ""B"""\nb@x.example,C\n'
    if name == "l.tsv":
        Path(source).write_text(cells.replace(",", "\t"))
    elif name == "l.orc":
        rows.write.orc(source)
    elif name == "l.csv.gz":
        Path(source).write_bytes(gzip.compress(cells.encode()))
    elif name == "l.jsonl.bz2":
        lines = f'{{"email":"{given}","name":"A"}}\n{{"email":"b@x.example","name":"C"}}\n'
        Path(source).write_bytes(bz2.compress(lines.encode()))
    elif name == "lists":
        rows.write.json(source)
    else:
        rows.createOrReplaceTempView("people")
    assert plan(spark, Path(source), tmp_path / "plan", message=PERSONAL).planned == 2
    planned = {r["address"] for e in envelopes(spark, tmp_path / "plan") for r in e["recipients"]}
    assert planned == {"a@x.example", "b@x.example"}


def test_a_directory_of_csv_files_that_differ(spark: "SparkSession", tmp_path: Path) -> None:
    """Columns in another order are refused, not read as each other."""
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "1.csv").write_text("email,name\na@x.example,A\n")
    (lists / "2.csv").write_text("name,email\nB,b@x.example\n")
    with pytest.raises(LocalError, match=r"other files have (email|name):"):
        plan(spark, lists, tmp_path / "plan")
    (lists / "3.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="files of several kinds: csv, jsonl"):
        plan(spark, lists, tmp_path / "plan")


def test_another_encoding_and_separator(spark: "SparkSession", tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_bytes("email;name\na@x.example;Jörg\njörg@x.example;J\n".encode("latin-1"))
    options = {"encoding": "ISO-8859-1", "sep": ";"}
    manifest = plan(spark, listed, tmp_path / "plan", reader_options=options, message=PERSONAL)
    assert (manifest.planned, manifest.rejected) == (2, 0)
    fields = {r["address"]: r["fields"]["name"] for e in envelopes(spark, tmp_path / "plan") for r in e["recipients"]}  # fmt: skip
    assert fields == {"a@x.example": "Jörg", "jörg@x.example": "J"}


def addresses_of(spark: "SparkSession", output: Path) -> set[str]:
    return {r["address"] for e in envelopes(spark, output) for r in e["recipients"]}


def test_variants_divide_a_list(spark: "SparkSession", tmp_path: Path) -> None:
    """Each recipient is in one variant, the same one when the list grows; shares are about as asked for."""
    rows = [[f"{n}@d{n % 7}.example", ""] for n in range(1000)]
    listed = write_list(tmp_path / "list.csv", rows)
    variants = parse_variants("a=45,b=45,holdout=10")
    parts = {}
    for name, _ in variants:
        selection = Selection("june", variants=variants, variant=name)
        manifest = plan(spark, listed, tmp_path / name, selection=selection)
        parts[name] = addresses_of(spark, tmp_path / name)
        assert (manifest.planned, manifest.other_variant) == (len(parts[name]), 1000 - len(parts[name]))
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 1000
    assert 400 < len(parts["a"]) < 500
    assert 60 < len(parts["holdout"]) < 140
    write_list(listed, [*rows, ["new@x.example", ""]])
    selection = Selection("june", variants=variants, variant="a")
    plan(spark, listed, tmp_path / "grown", selection=selection)
    assert addresses_of(spark, tmp_path / "grown") - {"new@x.example"} == parts["a"]


def test_a_sample(spark: "SparkSession", tmp_path: Path) -> None:
    listed = write_list(tmp_path / "list.csv", [[f"{n}@x.example", ""] for n in range(1000)])
    manifest = plan(spark, listed, tmp_path / "plan", selection=Selection("june", sample=0.1))
    assert manifest.planned + (manifest.not_sampled or 0) == 1000
    assert 60 < manifest.planned < 140
    assert len(left_out(spark, tmp_path / "plan")["not_sampled"]) == manifest.not_sampled


def test_caps_per_day(spark: "SparkSession", tmp_path: Path) -> None:
    """What is over a provider's cap is the list of another plan, with the fields that the message needs."""
    rows = [[f"{n}@gmail.com", f"G{n}"] for n in range(50)] + [
        [f"{n}@x.example", "X"] for n in range(20)
    ]
    listed = write_list(tmp_path / "list.csv", [*rows, ["0@gmail.com", "again"]])
    selection = Selection("june", caps={"google": 30, "x.example": 100})
    manifest = plan(spark, listed, tmp_path / "today", selection=selection, message=PERSONAL)
    assert (manifest.planned, manifest.postponed, manifest.duplicate) == (50, 20, 1)
    tomorrow = plan(spark, tmp_path / "today" / "postponed", tmp_path / "next", message=PERSONAL)
    assert tomorrow.planned == 20
    today, after = (addresses_of(spark, tmp_path / name) for name in ("today", "next"))
    assert today | after == {row[0] for row in rows}
    assert not today & after
    fields = {r["address"]: r["fields"]["name"] for e in envelopes(spark, tmp_path / "next") for r in e["recipients"]}  # fmt: skip
    assert all(name == f"G{address.partition('@')[0]}" for address, name in fields.items())
    shutil.rmtree(tmp_path / "today" / "manifest")  # as if the run had been killed before
    with pytest.raises(LocalError, match="today: there is no plan here"):
        plan(spark, tmp_path / "today" / "postponed", tmp_path / "again", message=PERSONAL)


def test_tables_of_a_catalog(spark: "SparkSession", tmp_path: Path) -> None:
    """They have the rows of the last plan; what is postponed is the list of tomorrow's."""
    listed = write_list(tmp_path / "list.csv", [[f"{n}@gmail.com", ""] for n in range(5)] + [["no", ""]])
    spark.sql(f"CREATE SCHEMA june LOCATION '{tmp_path}/warehouse'")
    try:
        plan(spark, listed, tmp_path / "whole", tables="june")
        assert not spark.catalog.tableExists("june.postponed")
        capped = Selection("june", caps={"google": 2})
        plan(spark, listed, tmp_path / "capped", tables="june", selection=capped)
        [envelope] = spark.table("june.envelopes").collect()
        assert [envelope] == envelopes(spark, tmp_path / "capped")
        assert len(envelope["recipients"]) == 2
        assert sorted(row["kind"] for row in spark.table("june.left_out").collect()) == [
            "postponed", "postponed", "postponed", "rejected",
        ]  # fmt: skip
        ample = Selection("june", caps={"google": 9})
        postponed = "table:June.`postponed`"
        with pytest.raises(LocalError, match="--tables june would replace this list"):
            plan(spark, postponed, tmp_path / "lost", tables="june", selection=ample)
        spark.sql(f"CREATE SCHEMA july LOCATION '{tmp_path}/july'")
        tomorrow = plan(spark, postponed, tmp_path / "tomorrow", tables="july", selection=ample)
        assert (tomorrow.input, tomorrow.planned) == (3, 3)
        assert plan(spark, "table:july.POSTPONED", tmp_path / "third").input == 0, "a chain ends"
        plan(spark, listed, tmp_path / "again", tables="june")
        assert not spark.catalog.tableExists("june.postponed"), "stale recipients"
        with pytest.raises(LocalError, match="nowhere"):
            plan(spark, listed, tmp_path / "failed", tables="nowhere")
        assert not (tmp_path / "failed" / "manifest").exists()
    finally:
        spark.sql("DROP SCHEMA june CASCADE")
        spark.sql("DROP SCHEMA IF EXISTS july CASCADE")


def test_a_cap_and_a_time_that_is_in_the_message(spark: "SparkSession", tmp_path: Path) -> None:
    """The column of the times, which is also a merge field, is in tomorrow's list once."""
    rows = [[f"{n}@gmail.com", "2027-05-20T08:00"] for n in range(5)]
    listed = write_list(tmp_path / "list.csv", rows, head=("email", "at"))
    changes = {"message": PERSONAL.replace(b"name", b"at"), "send_at_column": "at"}
    selection = Selection("june", caps={"google": 3})
    assert plan(spark, listed, tmp_path / "today", selection=selection, **changes).postponed == 2
    assert plan(spark, tmp_path / "today" / "postponed", tmp_path / "next", **changes).planned == 2
    sent_at = {
        row["send_at_ms"] for day in ("today", "next") for row in envelopes(spark, tmp_path / day)
    }
    assert len(sent_at) == 1


def test_a_chain_of_caps_ends_with_plans_of_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    """The list of tomorrow is there when nothing is over a cap; its plan is complete, and so is the one after it."""
    source, caps = (
        write_list(tmp_path / "list.csv", [[f"{n}@gmail.com", "G"] for n in range(50)]),
        {"google": 30},
    )
    planned = []
    for day in range(4):
        selection = Selection("june", caps=caps)
        manifest = plan(spark, source, tmp_path / f"day{day}", selection=selection, message=PERSONAL)
        planned.append((manifest.planned, manifest.postponed))
        source = tmp_path / f"day{day}" / "postponed"
    assert planned == [(30, 20), (20, 0), (0, 0), (0, 0)]
    (tmp_path / "empty.csv").write_text("email,name\n")
    with pytest.raises(LocalError, match="the list is empty"):
        plan(spark, tmp_path / "empty.csv", tmp_path / "other", message=PERSONAL)


def test_the_providers_of_the_configuration(spark: "SparkSession", tmp_path: Path) -> None:
    """Domains belong to the providers of its file, too."""
    listed = write_list(
        tmp_path / "list.csv", [[f"{n}@{d}.example", "x"] for n in range(20) for d in "ab"]
    )
    (tmp_path / "providers.yaml").write_text("providers: {acme: {domains: [a.example, b.example]}}")
    (tmp_path / "z.yaml").write_text("providers: {file: providers.yaml}")
    selection = Selection("june", caps={"acme": 30})
    config = load_config(tmp_path / "z.yaml")
    manifest = plan(spark, listed, tmp_path / "plan", selection=selection, config=config)
    assert (manifest.planned, manifest.postponed) == (30, 10)
    plan(spark, listed, tmp_path / "all", config=config, recipients_per_message=2)
    assert {e["provider"] for e in envelopes(spark, tmp_path / "all")} == {"acme"}
    (tmp_path / "providers.yaml").write_text("providers: {acme: {domains: [A.example]}}")
    with pytest.raises(LocalError, match=r"providers\.yaml.*A\.example"):
        plan(spark, listed, tmp_path / "other", config=config)


def test_times_of_sending(spark: "SparkSession", tmp_path: Path) -> None:
    """Recipients of different minutes share no message; what is no time is rejected; an empty cell is at once."""
    rows = [["a@x.example", "2027-01-15T08:00:10Z"], ["b@x.example", "1800000030"], ["c@x.example", ""],
            ["d@x.example", "2027-01-15T08:01:00Z"], ["e@x.example", "soon"]]  # fmt: skip
    listed = write_list(tmp_path / "list.csv", rows, head=("email", "at"))
    manifest = plan(spark, listed, tmp_path / "plan", send_at_column="at")
    assert (manifest.planned, manifest.rejected) == (4, 1)
    assert left_out(spark, tmp_path / "plan")["rejected"] == [("e@x.example", "no time in 'at': 'soon'")]
    found = {tuple(members_of(e)): e["send_at_ms"] for e in envelopes(spark, tmp_path / "plan")}
    assert set(found) == {("a@x.example", "b@x.example"), ("c@x.example",), ("d@x.example",)}
    assert found[("c@x.example",)] is None
    assert found[("d@x.example",)] == 1_800_000_060_000
    with pytest.raises(LocalError, match="no column when"):
        plan(spark, listed, tmp_path / "other", send_at_column="when")


@pytest.mark.parametrize(
    "changes", [{}, {"case_sensitive": True}, {"selection": Selection("june", caps={"gmail.com": 30})}]
)
def test_blocks_change_nothing(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Rows that Spark distributes one by one have the same kinds and reasons as those in blocks, also of a list that tasks read."""
    from zonemta_py.pipeline.plan import files as module
    from zonemta_py.pipeline.plan.list import plain_list

    rows = [[f"{'R' if n % 5 else 'r'}{n % 700}@{('gmail.com', 'x.example', 'é.example')[n % 3]}", f"{n}"] for n in range(2000)]  # fmt: skip
    rows += [["É@x.example", ""], ["é@x.example", ""], ["nothing", ""], *rows[:50]]
    listed = write_list(tmp_path / "list.csv", rows)
    (tmp_path / "s.txt").write_text("r6@gmail.com\n@xn--9ca.example\n")
    found = []
    for name in ("plain", "tasks", "joined", "blocks", "rows"):
        held_max = 0 if name == "joined" else 1_000_000  # above it Spark joins the entries
        monkeypatch.setattr("zonemta_py.pipeline.plan.suppression.HELD_MAX", held_max)
        monkeypatch.setattr(module, "BY_TASKS_BYTES_MIN", 0 if name == "tasks" else 1 << 30)
        if name == "plain":
            assert plain_list(Path(listed), ",", ["email", "name"], "email") is not None
        if name == "blocks":
            monkeypatch.setattr(module, "_plain", lambda *_: None)
        if name == "rows":
            monkeypatch.setattr(module, "_blocks", lambda *_: None)
        plan(spark, listed, tmp_path / name, suppress=[str(tmp_path / "s.txt")], **changes)
        planned = sorted(
            r["address"] for e in envelopes(spark, tmp_path / name) for r in e["recipients"]
        )
        out = {kind: sorted(each) for kind, each in left_out(spark, tmp_path / name).items()}
        found.append((planned, out))
    assert all(each == found[0] for each in found)
    assert {"rejected", "duplicate", "suppressed"} <= set(found[0][1])


@pytest.mark.parametrize("personal", [False, True])
def test_what_tasks_write_is_what_spark_writes(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, personal: bool
) -> None:
    """The same envelopes with the same keys, slots and turns; also with fields, and times of sending."""
    from pyspark.testing import assertDataFrameEqual

    from zonemta_py.pipeline.plan import files as module

    rows = [[f"{'R' if n % 5 else 'r'}{n % 2900}@{('gmail.com', 'x.example', 'é.example')[n % 3]}", f"{n}", f"2027-05-20T{n % 3:02}:00"] for n in range(3000)]  # fmt: skip
    rows += [["nothing", "", "2027-05-20T08:00"]]
    listed = write_list(tmp_path / "list.csv", rows, head=("email", "name", "at"))
    monkeypatch.setattr("zonemta_py.pipeline.plan.job.secrets.token_hex", lambda size: "0" * 2 * size)
    changes = {"message": PERSONAL, "send_at_column": "at"} if personal else {}
    found = []
    for minimum in (0, 1 << 30):
        monkeypatch.setattr(module, "BY_TASKS_BYTES_MIN", minimum)
        output = tmp_path / str(minimum)
        manifest = plan(spark, listed, output, slots=2, **changes)
        tables = [spark.read.parquet(f"{output}/{name}") for name in ("envelopes", "left_out")]
        found.append(({**asdict(manifest), "made_ms": 0}, tables))
    (one, own), (other, of_spark) = found
    assert one == other
    assert one["planned"] > 2000
    for each, wanted in zip(own, of_spark, strict=True):
        assert each.schema.simpleString() == wanted.schema.simpleString()
        assertDataFrameEqual(each, wanted)


def test_tables_without_rows_by_tasks(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of bad rows has no envelope, one of good rows leaves nothing out: both tables can be read."""
    from zonemta_py.pipeline.plan import files as module

    monkeypatch.setattr(module, "BY_TASKS_BYTES_MIN", 0)
    for name, counts in (("bad", (0, 1)), ("good@x.example", (1, 0))):
        listed = write_list(tmp_path / f"{name}.csv", [[name, "x"]])
        manifest = plan(spark, listed, tmp_path / name)
        assert (manifest.envelopes, manifest.rejected) == counts
        assert len(envelopes(spark, tmp_path / name)) == counts[0]
        assert spark.read.parquet(f"{tmp_path / name}/left_out").count() == counts[1]


def test_a_file_of_a_task_that_failed(tmp_path: Path) -> None:
    from zonemta_py.pipeline.plan.files import PlanFiles

    files = PlanFiles(tmp_path, "run", "s", 1, "zstd")
    files.keep(())
    assert files.count() == (0, 0, 0)
    (files.directory / "envelopes" / "part-x.parquet").write_bytes(b"half")
    with pytest.raises(LocalError, match=r"part-x\.parquet: cannot be read again"):
        files.count()
    files.keep(("left_out/part-empty.parquet",))
    files.publish()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["envelopes", "left_out"]
    again = PlanFiles(tmp_path, "other", "s", 1, "zstd")
    again.keep(())
    with pytest.raises(LocalError, match=f"{tmp_path}: Directory not empty"):
        again.publish()
    assert [each.name for each in (tmp_path / "envelopes").iterdir()] == ["part-empty.parquet"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB; a user who may not mount one has no such test."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_a_plan_that_cannot_be_written(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_disk: Path
) -> None:
    """The error names the plan, not its list; nothing stays that fills the disk."""
    from zonemta_py.pipeline.plan import files as module

    monkeypatch.setattr(module, "BY_TASKS_BYTES_MIN", 0)
    listed = write_list(tmp_path / "list.csv", [[f"{n}{secrets.token_hex(20)}@x.example", "x"] for n in range(30_000)])  # fmt: skip
    with pytest.raises(LocalError, match=r"list\.csv/plan: Not a directory$"):
        plan(spark, listed, f"{listed}/plan")
    output = small_disk / "plan"
    with pytest.raises(LocalError, match=f"^{output}: No space left on device$"):
        plan(spark, listed, output)
    assert list(output.rglob("*.parquet")) == []


def test_an_output_with_a_link(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a plan is where Spark looks for it: .. is removed before links are followed."""
    from zonemta_py.pipeline.plan import files as module

    monkeypatch.setattr(module, "BY_TASKS_BYTES_MIN", 0)
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    listed = write_list(tmp_path / "list.csv", [["a@x.example", "x"]])
    output = Path(f"{tmp_path}/link/../plan")
    plan(spark, listed, output)
    assert len(envelopes(spark, output)) == 1
    assert {each.name for each in (tmp_path / "plan").iterdir()} == {
        "envelopes",
        "left_out",
        "manifest",
        "message",
    }
