"""Sessions share the turns of the event loop with deliveries."""

import asyncio

from tests.kit.deadlines import until
from zonemta_py.intake.context import IntakeTurns


class Client:
    """A session with ``steps`` left to do; each is noted."""

    def __init__(self, name: str, steps: int, turns: IntakeTurns, noted: list[str]) -> None:
        self._name, self._steps, self._turns, self._noted = name, steps, turns, noted

    def go_on(self) -> None:
        while self._steps:
            if self._turns.is_over():
                self._turns.wait(self._on_turn)
                return
            self._step()

    def _on_turn(self) -> None:
        self._step()
        self.go_on()

    def _step(self) -> None:
        self._steps -= 1
        self._noted.append(self._name)


async def test_one_step_in_each_turn_when_the_budget_is_used() -> None:
    """In the order in which they came; what else the loop has to do comes between two steps."""
    loop = asyncio.get_running_loop()
    turns, noted = IntakeTurns(loop, 0.0), list[str]()

    def other() -> None:
        noted.append("-")
        if noted.count("-") < 20:
            loop.call_soon(other)

    loop.call_soon(other)
    for name in "abc":
        Client(name, 2, turns, noted).go_on()
    await until(lambda: noted.count("-") == 20, "the other work")
    assert "".join(noted).rstrip("-") == "a-a-b-c-b-c"


async def test_all_at_once_within_the_budget() -> None:
    turns, noted = IntakeTurns(asyncio.get_running_loop(), 3600.0), list[str]()
    for name in "abc":
        Client(name, 100, turns, noted).go_on()
    assert "".join(noted) == "a" * 100 + "b" * 100 + "c" * 100


async def test_a_session_that_has_ended_takes_no_step_of_another() -> None:
    """Its turn passes to the next one in the same turn or the one after: none is forgotten."""
    turns, noted = IntakeTurns(asyncio.get_running_loop(), 0.0), list[str]()
    assert not turns.is_over()
    assert turns.is_over()
    for _ in range(5):
        turns.wait(lambda: None)
    Client("a", 3, turns, noted).go_on()
    await until(lambda: noted == ["a"] * 3, "all steps")
