"""The guard: exceptions and hangs end the episode with reward 0 and are counted."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from turnscale.envs.guard import GuardedEnvironment
from turnscale.envs.protocol import Step, Task
from turnscale.errors import TaskError

TASK = Task("f", "1", "train", 0)


class Fragile:
    """Breaks in the named way at the named call."""

    def __init__(
        self, call: str = "", error: Exception | None = None, hang: threading.Event | None = None
    ) -> None:
        self.call, self.error, self.hang, self.calls = call, error, hang, 0

    def _do(self, call: str) -> None:
        self.calls += 1
        if call == self.call:
            if self.hang is not None:
                self.hang.wait(10)
            if self.error is not None:
                raise self.error

    def reset(self, task: Task, seed: int) -> str:
        self._do("reset")
        return "prompt"

    def step(self, turn: str, complete: bool = True) -> Step:
        self._do("step")
        return Step(turn, valid=complete)

    def clone(self) -> Fragile:
        self._do("clone")
        return Fragile(self.call, self.error)

    def anchor(self) -> str:
        self._do("anchor")
        return "anchor"

    def close(self) -> None:
        self._do("close")


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_healthy_environment_passes_through(timeout_s: float | None) -> None:
    guard = GuardedEnvironment(Fragile(), timeout_s=timeout_s)
    assert guard.reset(TASK, 0) == "prompt"
    assert guard.step("x", complete=False) == Step("x", valid=False)
    assert guard.anchor() == guard.clone().anchor() == "anchor"
    guard.close()
    assert not guard.failures


@pytest.mark.parametrize("timeout_s", [None, 5.0])
@pytest.mark.parametrize("call", ["reset", "step"])
def test_exception_ends_the_episode_with_its_reason(call: str, timeout_s: float | None) -> None:
    failures: Counter[str] = Counter()
    inner = Fragile(call, ValueError("boom"))
    guard = GuardedEnvironment(inner, failures, timeout_s)
    guard.reset(TASK, 0)
    lost = guard.step("x")
    assert lost == Step("", done=True, reward=0.0, failure=f"{call}: ValueError")
    assert failures == {f"{call}: ValueError": 1}
    calls = inner.calls
    assert guard.step("y").failure and guard.anchor() == f"{call}: ValueError" and inner.calls == calls
    assert guard.clone().step("z").failure == f"{call}: ValueError"


def test_reset_starts_afresh_after_a_failure() -> None:
    inner = Fragile("step", ValueError())
    guard = GuardedEnvironment(inner)
    guard.reset(TASK, 0)
    guard.step("x")
    inner.error = None
    assert guard.reset(TASK, 0) == "prompt"
    assert guard.step("x") == Step("x")


def test_clone_that_fails_is_lost_alone() -> None:
    inner = Fragile("clone", OSError())
    guard = GuardedEnvironment(inner)
    guard.reset(TASK, 0)
    copy = guard.clone()
    assert copy.step("x").failure == "clone: OSError"
    copy.close()
    assert guard.step("x") == Step("x") and guard.failures == {"clone: OSError": 1}
    assert copy.reset(TASK, 0) == "" and inner.calls == 3


def test_hang_is_cut_off_counted_and_the_environment_abandoned() -> None:
    release = threading.Event()
    inner = Fragile("step", hang=release)
    guard = GuardedEnvironment(inner, timeout_s=0.05)
    guard.reset(TASK, 0)
    start = time.perf_counter()
    assert guard.step("x").failure == "step: EnvironmentTimeout"
    assert time.perf_counter() - start < 2
    calls = inner.calls
    assert guard.reset(TASK, 0) == "" and guard.step("x").done
    guard.close()
    assert inner.calls == calls
    assert guard.failures["step: EnvironmentTimeout"] == 1
    release.set()


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_errors_the_user_can_mend_are_not_swallowed(timeout_s: float | None) -> None:
    guard = GuardedEnvironment(Fragile("reset", TaskError("no Java")), timeout_s=timeout_s)
    with pytest.raises(TaskError, match="no Java"):
        guard.reset(TASK, 0)
