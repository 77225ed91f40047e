"""Which store is opened, and the error when it cannot be."""

import os
from pathlib import Path

import pytest

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.storage.open import open_store


@pytest.mark.parametrize("kind", ["leveldb", "filesystem"])
def test_a_second_opener_is_refused(directory: Path, kind: str) -> None:
    """The error names the process that has the store."""
    settings = QueueSettings(directory=directory, store=kind)
    store = open_store(settings)
    try:
        with pytest.raises(QueueLocked, match=f"process {os.getpid()}"):
            open_store(settings)
    finally:
        store.close()
    open_store(settings).close()


@pytest.mark.parametrize("other", ["filesystem", "memory"])
def test_a_queue_in_another_store(directory: Path, other: str) -> None:
    """Its mail would wait unseen: refused."""
    open_store(QueueSettings(directory=directory)).close()
    with pytest.raises(LocalError, match="store 'leveldb' here"):
        open_store(QueueSettings(directory=directory, store=other))
