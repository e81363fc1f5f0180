"""Functions that run in turn, one at a time, and have what they ask for answered together.

Each function runs in a thread of its own, but never two at once: a function keeps the floor until it asks something
or ends. When all that are left have asked, their questions are answered in the calling thread. The order is fixed,
so a run is as reproducible as one without threads, which serve here as coroutines that need no change of the code
between the function and its questions (grad and inference mode are a thread's own, for one).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How a function ended: its result, or the exception that left it."""

    result: Any = None
    error: BaseException | None = None


class Strand:
    """One of the functions. It is passed to its own function, which asks through it."""

    def __init__(self, work: Callable[[Strand], Any]) -> None:
        self._floor, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._work = work
        self._answer: Outcome = Outcome()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.question: Any = None
        self.outcome: Outcome | None = None
        self._thread.start()

    def ask(self, question: Any) -> Any:
        """Give the floor away until the question is answered; called from the strand's own function.

        Raises:
            BaseException: what answering it raised.
        """
        self.question = question
        self._back.release()
        self._floor.acquire()
        if self._answer.error is not None:
            raise self._answer.error
        return self._answer.result

    def go_on(self, answer: Outcome) -> None:
        """Give the floor to the strand until it asks or ends; called from the thread that answers."""
        self._answer = answer
        self._floor.release()
        self._back.acquire()

    def _run(self) -> None:
        self._floor.acquire()
        try:
            outcome = Outcome(result=self._work(self))
        except BaseException as error:  # handed over to who called run_together
            outcome = Outcome(error=error)
        self.outcome = outcome
        self._back.release()


def run_together(
    works: Sequence[Callable[[Strand], Any]], answer: Callable[[list[Any]], Mapping[int, Any]]
) -> list[Outcome]:
    """Run functions to their ends.

    Args:
        works: each is called with its strand.
        answer: given the open questions, in the order of the functions, returns the answers of one at least by
            its position among them. What it raises is raised in every function that has asked.

    Returns:
        How each function ended.
    """
    strands = [Strand(work) for work in works]
    ready: list[tuple[Strand, Outcome]] = [(strand, Outcome()) for strand in strands]
    while ready:
        for strand, given in ready:
            strand.go_on(given)
        asking = [strand for strand in strands if strand.outcome is None]
        if not asking:
            break
        try:
            answers = answer([strand.question for strand in asking])
            ready = [(asking[index], Outcome(result=value)) for index, value in answers.items()]
        except BaseException as error:  # raised where the question was asked
            ready = [(strand, Outcome(error=error)) for strand in asking]
    return [strand.outcome or Outcome() for strand in strands]
