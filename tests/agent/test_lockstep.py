"""Functions in turn: their order, their answers, and how each may end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from turnscale.agent.lockstep import Strand, run_together


def test_questions_of_all_are_answered_together_in_a_fixed_order() -> None:
    said: list[str] = []
    rounds: list[list[Any]] = []

    def counting(name: str, count: int):  # type: ignore[no-untyped-def]
        def work(strand: Strand) -> int:
            total = 0
            for number in range(count):
                said.append(f"{name}{number}")
                total += strand.ask(number + 1)
            return total

        return work

    def double(asked: list[int]) -> dict[int, int]:
        rounds.append(list(asked))
        return {index: 2 * value for index, value in enumerate(asked)}

    outcomes = run_together([counting("a", 3), counting("b", 1), counting("c", 2)], double)
    assert [outcome.result for outcome in outcomes] == [12, 2, 6]
    assert said == ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert rounds == [[1, 1, 1], [2, 2], [3]]


def test_those_not_answered_wait() -> None:
    def least(asked: list[int]) -> dict[int, int]:
        return {asked.index(min(asked)): min(asked)}

    def climb(start: int):  # type: ignore[no-untyped-def]
        return lambda strand: [strand.ask(start + i) for i in range(3)]

    outcomes = run_together([climb(10), climb(0)], least)
    assert [outcome.result for outcome in outcomes] == [[10, 11, 12], [0, 1, 2]]


def test_one_that_fails_is_reported_and_the_others_go_on() -> None:
    def fails(strand: Strand) -> None:
        strand.ask(1)
        raise ValueError("mine")

    def stops(strand: Strand) -> None:
        raise KeyboardInterrupt

    def works(strand: Strand) -> list[int]:
        return [strand.ask(1) for _ in range(3)]

    outcomes = run_together([fails, stops, works], lambda asked: dict(enumerate(asked)))
    assert isinstance(outcomes[0].error, ValueError) and str(outcomes[0].error) == "mine"
    assert isinstance(outcomes[1].error, KeyboardInterrupt)
    assert outcomes[2].result == [1, 1, 1] and outcomes[2].error is None
    assert threading.active_count() == 1 or all(
        not thread.is_alive() or thread.daemon
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
    )


def test_an_answer_that_fails_is_raised_where_it_was_asked_for() -> None:
    def works(strand: Strand) -> str:
        with pytest.raises(MemoryError):
            strand.ask("too much")
        return "caught"

    def answer(asked: list[Any]) -> dict[int, Any]:
        raise MemoryError

    outcomes = run_together([works, lambda strand: strand.ask("too much")], answer)
    assert outcomes[0].result == "caught"
    assert isinstance(outcomes[1].error, MemoryError)
