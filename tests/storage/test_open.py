"""Which store is opened, and what is said when it cannot be."""

import os
from pathlib import Path

import pytest

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.storage.open import open_store


@pytest.mark.parametrize("kind", ["leveldb", "filesystem"])
def test_second_opener_is_told_who_has_it(folder: Path, kind: str) -> None:
    settings = QueueSettings(directory=folder, store=kind)
    store = open_store(settings)
    try:
        with pytest.raises(QueueLocked, match=f"process {os.getpid()}"):
            open_store(settings)
    finally:
        store.close()
    open_store(settings).close()


@pytest.mark.parametrize("other", ["filesystem", "memory"])
def test_mail_in_another_store_is_not_forgotten(folder: Path, other: str) -> None:
    open_store(QueueSettings(directory=folder)).close()
    with pytest.raises(LocalError, match="store 'leveldb' here"):
        open_store(QueueSettings(directory=folder, store=other))
