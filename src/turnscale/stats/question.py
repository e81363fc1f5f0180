"""The four questions an interval can answer, and the results that carry the question with them.

An interval is meaningless until one says what would be drawn again: attempts, tasks, training runs, or both
of the last two. Every result names its question, its counts and its minimum detectable effect; data that
cannot answer the question give `NotEstimable`, never a wider or narrower guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Question(StrEnum):
    """What is drawn again when the study is repeated. The value is the phrase to print."""

    THESE_CHECKPOINTS = "these checkpoints on these tasks"
    TASKS_LIKE_THESE = "these checkpoints on tasks like these"
    METHOD_RETRAINED = "the method retrained on these tasks"
    METHOD_NEW_TASKS = "the method retrained, on new tasks"

    @property
    def resamples(self) -> str:
        """The unit whose redrawing the interval covers."""
        return {
            Question.THESE_CHECKPOINTS: "attempts",
            Question.TASKS_LIKE_THESE: "tasks",
            Question.METHOD_RETRAINED: "seeds",
            Question.METHOD_NEW_TASKS: "seeds and tasks",
        }[self]

    @property
    def about_method(self) -> bool:
        """True if the claim is about a training method, so that it needs several training seeds."""
        return self in (Question.METHOD_RETRAINED, Question.METHOD_NEW_TASKS)


@dataclass(frozen=True)
class Estimate:
    """One number of one arm with its interval. Fractions, not points; `df` may be infinite.

    `n_attempts` is the smallest number of attempts in a (seed, task) cell; `mde` is the distance from a fixed
    reference value that a two-sided test at 1 − level would find with probability 0.8.
    """

    value: float
    lo: float
    hi: float
    se: float
    df: float
    level: float
    question: Question
    estimator: str
    metric: str
    n_seeds: int
    n_tasks: int
    n_attempts: int
    mde: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The difference of two arms (first minus second) with its interval, p value and detectable effect.

    `p` is None where the estimator gives an interval but no test (percentile bootstrap).
    """

    difference: float
    lo: float
    hi: float
    p: float | None
    se: float
    df: float
    level: float
    question: Question
    estimator: str
    metric: str
    n_seeds_a: int
    n_seeds_b: int
    n_tasks: int
    n_attempts: int
    mde: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def significant(self) -> bool:
        """True if the interval leaves out zero at its own level; says nothing about other questions."""
        return self.lo > 0 or self.hi < 0


@dataclass(frozen=True)
class NotEstimable:
    """A question these data cannot answer; `value` is the point estimate or difference, if one exists.

    `seed_sd_tolerance` is filled where one seed per arm is the obstacle: the largest across-seed standard
    deviation at which the observed difference would still stand (None if it stands at none).
    """

    question: Question
    reason: str
    remedy: str
    value: float | None = None
    metric: str = ""
    n_seeds: tuple[int, ...] = ()
    n_tasks: int = 0
    n_attempts: int = 0
    seed_sd_tolerance: float | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line for a table footnote."""
        text = f"not estimable ({self.question}): {self.reason}. Remedy: {self.remedy}."
        if self.seed_sd_tolerance is not None:
            text += f" Stands only while the across-seed sd is below {self.seed_sd_tolerance:.4f}."
        return text
