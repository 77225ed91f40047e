"""SIGINT while a job runs."""

import signal

import pytest

pytest.importorskip("pyspark")
from zonemta_py.pipeline.spark.session import interruptible, same_handler


def test_an_ignored_signal_stays_ignored() -> None:
    """As of a command that a shell runs in the background, or with nohup."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_session_that_does_not_start_leaves_the_handler() -> None:
    """Spark sets its own when a session starts."""
    with interruptible():
        own = signal.getsignal(signal.SIGINT)
        with pytest.raises(ValueError, match="no session"), same_handler():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise ValueError("no session")
        assert signal.getsignal(signal.SIGINT) is own
