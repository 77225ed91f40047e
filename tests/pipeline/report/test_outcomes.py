"""One outcome for each recipient of a plan."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDRESSES = ("split", "delivered", "bounced", "waiting", "refused", "deferred", "retried", "unsent")


def envelopes(spark: "SparkSession") -> "DataFrame":
    from zonemta_py.pipeline.spark import tables

    recipients: list[tuple[str, dict[str, str]]] = [(f"{name}@x.example", {}) for name in ADDRESSES]
    return spark.createDataFrame([("k", 0, 0, "default", "x", recipients, None)], tables.ENVELOPE)


def row(name: str, state: str, messages: list[str], run: int = 1) -> tuple[object, ...]:
    return (
        "june",
        "k",
        "r:25",
        f"{name}@x.example",
        state,
        250,
        f"{state} reply",
        messages,
        False,
        1,
        None,
        run,
    )


def test_outcomes(spark: "SparkSession") -> None:
    """A final event wins over the ledger; of several runs the last that is not deferred counts."""
    from zonemta_py.pipeline.events.rows import event_schema
    from zonemta_py.pipeline.report.outcomes import outcome_events, plan_outcomes
    from zonemta_py.pipeline.spark import tables

    ledger = spark.createDataFrame(
        [
            *(row(name, "accepted", ["m1"]) for name in ("split", "delivered", "bounced", "waiting")),
            row("refused", "refused", []),
            row("deferred", "deferred", []),
            row("retried", "deferred", [], 1),
            row("retried", "accepted", ["m2"], 2),
        ],
        tables.LEDGER_RUNS,
    )
    fields = event_schema().names
    events: list[dict[str, Any]] = [
        {"event": "delivered", "message": "m1", "recipient": "delivered@x.example", "code": 250},
        {"event": "deferred", "message": "m1", "recipient": "waiting@x.example", "code": 451},
        {"event": "bounced", "message": "m1", "recipient": "bounced@x.example", "code": 550, "status": "5.1.1", "reply": "no"},
        {"event": "accepted", "message": "m3", "submission": "m1"},
        {"event": "accepted", "message": "m1", "submission": ""},
        {"event": "delivered", "message": "m3", "recipient": "split@x.example", "code": 250},
        {"event": "delivered", "message": "other", "recipient": "unsent@x.example", "code": 250},
    ]  # fmt: skip
    found = (
        envelopes(spark)
        .transform(
            plan_outcomes(
                ledger,
                outcome_events(
                    spark.createDataFrame(
                        [tuple(each.get(name) for name in fields) for each in events], event_schema()
                    )
                ),
            )
        )
        .collect()
    )
    outcomes = {each["address"].partition("@")[0]: each["outcome"] for each in found}
    assert outcomes == {
        "split": "delivered", "delivered": "delivered", "bounced": "bounced", "waiting": "waiting", "refused": "refused by the relay",
        "deferred": "deferred by the relay", "retried": "waiting", "unsent": "unsent",
    }  # fmt: skip
    details = {each["address"].partition("@")[0]: each["detail"] for each in found}
    assert details["bounced"] == "550 5.1.1 no"
    assert details["refused"] == "refused reply"


def test_before_the_first_run(spark: "SparkSession") -> None:
    from zonemta_py.pipeline.report.outcomes import plan_outcomes

    events = spark.createDataFrame([], "event string")
    found = envelopes(spark).transform(plan_outcomes(None, events)).collect()
    assert {each["outcome"] for each in found} == {"unsent"}
    assert len(found) == len(ADDRESSES)
