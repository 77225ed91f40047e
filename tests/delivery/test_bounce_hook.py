"""The operator's bounce function: what it returns is sent only when it is a report."""

from functools import partial
from typing import Any, cast

import pytest

from zonemta_py.config.hooks import plain_function
from zonemta_py.delivery.report_composer import Bounce, apply_bounce_function

BOUNCE = Bounce("id", "s@sender.example", (), b"Subject: x\r\n", b"Subject: failed\r\n", b"report\r\n")


def applied(returned: object) -> Bounce | None:
    """With a function that returns ``returned``, or raises it."""

    def function(bounce: Bounce) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    return apply_bounce_function(lambda: function, BOUNCE)


def test_without_a_function() -> None:
    assert apply_bounce_function(lambda: None, BOUNCE) is BOUNCE


def test_a_changed_report() -> None:
    changed = BOUNCE._replace(body=b"shorter\r\n")
    assert applied(changed) == changed


def test_none_sends_no_report() -> None:
    assert applied(None) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "a string",
        True,
        BOUNCE._replace(header=b"not a header"),
        BOUNCE._replace(header=cast(bytes, "Subject: text\r\n")),
        BOUNCE._replace(body=cast(bytes, None)),
        tuple(BOUNCE),
    ],
)
def test_anything_else_leaves_the_report_unchanged(
    wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert applied(wrong) is BOUNCE
    assert "which is not used: " in caplog.text


def test_a_function_that_fails_leaves_the_report_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    assert applied(ValueError("a defect")) is BOUNCE
    assert "the bounce function failed on the report about id" in caplog.text


def test_a_function_that_cannot_be_loaded(caplog: pytest.LogCaptureFixture) -> None:
    load = partial(plain_function, "tests.delivery.test_bounce_hook.missing")
    assert apply_bounce_function(load, BOUNCE) is BOUNCE
    assert "the bounce function failed" in caplog.text
