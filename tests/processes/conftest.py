"""Children of these tests import modules of the tests."""

import pytest


@pytest.fixture(autouse=True)
def importable_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are started with -P, which leaves the current directory out of the module path."""
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))
