"""A wrapper that turns a broken or hanging environment into a lost episode, counted with its reason.

A rollout of many episodes must survive one bad game, but a failure may not vanish either: the episode ends with
reward 0, the step carries the reason, and the guard counts it. Errors the user can mend still stop the run.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from turnscale.envs.protocol import Environment, Step, Task
from turnscale.errors import TurnscaleError

T = TypeVar("T")


class EnvironmentTimeout(Exception):
    """An environment call took longer than allowed."""


class GuardedEnvironment:
    """An environment whose exceptions and time-outs end the episode with reward 0.

    Args:
        environment: the environment to guard.
        failures: counts by reason (``step: ValueError``), shared by all environments of a rollout.
        timeout_s: seconds a call may take, or None for no limit. A limit runs each call in a thread of its own;
            a call that overruns it cannot be stopped, so its environment is abandoned and never touched again.
    """

    def __init__(
        self, environment: Environment, failures: Counter[str] | None = None, timeout_s: float | None = None
    ) -> None:
        self._environment = environment
        self.failures: Counter[str] = Counter() if failures is None else failures
        self._timeout_s = timeout_s
        self._failure = ""
        self._abandoned = False

    def reset(self, task: Task, seed: int) -> str:
        """Start an episode; where that fails the prompt is empty and the next step ends the episode."""
        self._failure = ""
        if self._abandoned:
            return self._fail("reset", EnvironmentTimeout("the environment hung before"), "")
        return self._attempt("reset", lambda: self._environment.reset(task, seed), "")

    def step(self, turn: str, complete: bool = True) -> Step:
        """One turn, or the lost end of the episode."""
        if not self._failure:
            answer = self._attempt("step", lambda: self._environment.step(turn, complete), None)
            if answer is not None:
                return answer
        return Step("", done=True, reward=0.0, success=False, failure=self._failure)

    def clone(self) -> GuardedEnvironment:
        """A guarded copy; it is lost if the episode was, or if copying fails (which leaves the original be)."""
        inner: Environment | None = None
        failure = self._failure
        if not failure:
            inner = self._attempt("clone", self._environment.clone, None)
            failure = self._failure
            if not self._abandoned:
                self._failure = ""
        copy = GuardedEnvironment(inner or self._environment, self.failures, self._timeout_s)
        copy._failure, copy._abandoned = failure, inner is None
        return copy

    def anchor(self) -> str:
        """The visible state, or the reason for which the episode was lost."""
        if self._failure:
            return self._failure
        return self._attempt("anchor", self._environment.anchor, None) or self._failure

    def close(self) -> None:
        """Release the environment unless it hangs."""
        if not self._abandoned:
            self._attempt("close", self._environment.close, None)

    def _attempt(self, call: str, action: Callable[[], T], otherwise: T) -> T:
        try:
            return action() if self._timeout_s is None else _within(self._timeout_s, action)
        except TurnscaleError:
            raise
        except Exception as error:
            return self._fail(call, error, otherwise)

    def _fail(self, call: str, error: Exception, otherwise: T) -> T:
        self._failure = f"{call}: {type(error).__name__}"
        self._abandoned = self._abandoned or isinstance(error, EnvironmentTimeout)
        self.failures[self._failure] += 1
        return otherwise


def _within(seconds: float, action: Callable[[], T]) -> T:
    """The result of ``action``, or EnvironmentTimeout; the thread is a daemon and dies with the process."""
    answer: queue.Queue[tuple[bool, object]] = queue.Queue(maxsize=1)

    def work() -> None:
        try:
            answer.put((True, action()))
        except BaseException as error:  # handed to the caller, who raises it again
            answer.put((False, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        finished, value = answer.get(timeout=seconds)
    except queue.Empty:
        raise EnvironmentTimeout(f"no answer within {seconds} s") from None
    if finished:
        return value  # type: ignore[return-value]
    assert isinstance(value, BaseException)
    raise value
