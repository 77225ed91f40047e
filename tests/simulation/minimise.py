"""A scenario that fails, with as few actions as still make it fail."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from tests.simulation.scenario import Scenario

TRIES_MAX = 200
TIME_MAX_S = 60.0


def minimised(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """``scenario``, which fails, without the actions that are not needed for it: first halves are left out, at last single ones.

    What remains is decided anew by the seed.
    """
    size, tries, end_s = len(scenario.actions) // 2, 0, perf_counter() + TIME_MAX_S
    while size and tries < TRIES_MAX:
        at = 0
        while at < len(scenario.actions) and tries < TRIES_MAX and perf_counter() < end_s:
            tries += 1
            actions = [*scenario.actions[:at], *scenario.actions[at + size :]]
            shorter = replace(scenario, actions=actions)
            if fails(shorter):
                scenario = shorter
            else:
                at += size
        size //= 2
    return scenario
