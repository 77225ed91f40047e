"""The simulation finds defects: some that a few seeds are enough for; ``python -m tests.simulation --mutants --seeds 1-300`` tries all."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import zonemta_py
from tests.kit.deadlines import scaled
from tests.simulation.minimise import minimised
from tests.simulation.mutants import BY_NAME, MUTANTS, Mutant
from tests.simulation.scenario import Scenario, make

SOURCE = Path(zonemta_py.__file__).parent
FOUND_SOON = ("dot-lost", "dots", "key-without-recipients", "wrong-recipient")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_source_has_what_a_mutant_changes(mutant: Mutant) -> None:
    """Once, and what it becomes can be compiled."""
    text = (SOURCE / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_enough_mutants() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 15


@pytest.mark.timeout(scaled(200))
@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_defect_is_found(name: str) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--mutant", name, "--seeds", "1-20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(150))
    assert done.returncode == 1, done.stdout + done.stderr
    assert " FAILED " in done.stdout


def test_the_shortest_scenario_that_fails() -> None:
    """Actions that are not needed are left out."""
    scenario = make(3)
    needed = [scenario.actions[n] for n in (2, 5, 11)]

    def fails(tried: Scenario) -> bool:
        return all(each in tried.actions for each in needed)

    assert len(scenario.actions) > 12 and fails(scenario)
    assert minimised(scenario, fails).actions == needed


def test_what_fails_by_itself_needs_no_action() -> None:
    scenario = replace(make(3), actions=make(3).actions[:8])
    assert minimised(scenario, lambda tried: True).actions == []
