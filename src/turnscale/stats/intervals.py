"""Intervals for one arm and for the difference of two, one estimator per question.

| question | estimator | variance |
|---|---|---|
| these checkpoints on these tasks | `attempts_normal` | attempts within cells, stratified by task |
| these checkpoints on tasks like these | `tasks_t` | paired task differences, clusters kept whole |
| the method retrained on these tasks | `seeds_welch` | Welch t on seed means |
| the method retrained, on new tasks | `crossed_satterthwaite` | seeds × tasks by moments |

Welch and the crossed estimator are the defaults because percentile and BCa bootstraps over 3 to 5 seeds cover
75 to 89 % where 95 % is claimed (see benchmarks/calibration.py). One-arm intervals are cut to [0, 1] and
differences to [−1, 1], which cannot lose coverage of a probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr, stdtrit

from turnscale.errors import DataError
from turnscale.stats.outcomes import Counts, check_same_tasks
from turnscale.stats.passk import Metric
from turnscale.stats.power import minimum_detectable, seed_sd_tolerance
from turnscale.stats.question import Comparison, Estimate, NotEstimable, Question
from turnscale.stats.spread import combine, parts_for

ROUNDING = 1e-12  # a standard error below this is a sum of equal numbers

ESTIMATORS = {
    Question.THESE_CHECKPOINTS: "attempts_normal",
    Question.TASKS_LIKE_THESE: "tasks_t",
    Question.METHOD_RETRAINED: "seeds_welch",
    Question.METHOD_NEW_TASKS: "crossed_satterthwaite",
}


def estimate(
    arm: Counts, metric: Metric, question: Question, *, level: float = 0.95
) -> Estimate | NotEstimable:
    """The mean of `metric` over seeds and tasks of one arm, with the interval that answers `question`.

    Returns NotEstimable, with the value but without an interval, where the data cannot answer. Raises
    DataError for k above the number of attempts or a level outside (0, 1).
    """
    value = float(arm.scores(metric).mean())
    refusal = obstacle([arm], metric, question, level)
    if refusal:
        return _refuse(question, refusal, [arm], metric, value, level)
    se, df, _ = combine(parts_for(question, [arm], [metric]))
    if se[0] <= ROUNDING:
        return _constant_arm(arm, metric, question, value, level)
    half = float(se[0] * stdtrit(df[0], 0.5 + level / 2))
    return Estimate(
        value=value,
        lo=max(0.0, value - half),
        hi=min(1.0, value + half),
        se=float(se[0]),
        df=float(df[0]),
        level=level,
        question=question,
        estimator=ESTIMATORS[question],
        metric=metric.name,
        n_seeds=len(arm.seeds),
        n_tasks=len(arm.tasks),
        n_attempts=arm.attempts,
        mde=minimum_detectable(float(se[0]), float(df[0]), level),
        notes=design_notes([arm], metric, question),
    )


def compare(
    a: Counts, b: Counts, metric: Metric, question: Question, *, level: float = 0.95
) -> Comparison | NotEstimable:
    """The difference `a` − `b` of the mean of `metric`, with the interval and p value that answer `question`.

    Tasks are paired (both arms must have the same tasks: DataError), seeds are not. Returns NotEstimable
    where the data cannot answer: with one seed in a trained arm no claim about the method is made, and the
    seed-sd tolerance of the observed difference is given in its place.
    """
    check_same_tasks(a, b)
    difference = float(a.scores(metric).mean() - b.scores(metric).mean())
    refusal = obstacle([a, b], metric, question, level)
    if refusal:
        return _refuse(question, refusal, [a, b], metric, difference, level)
    se, df, _ = combine(parts_for(question, [a, b], [metric]))
    if se[0] <= ROUNDING:
        reason = f"no variation between {question.resamples}: their noise cannot be estimated"
        return _refuse(question, (reason, _MORE[question]), [a, b], metric, difference, level)
    half = float(se[0] * stdtrit(df[0], 0.5 + level / 2))
    return Comparison(
        difference=difference,
        lo=max(-1.0, difference - half),
        hi=min(1.0, difference + half),
        p=float(2 * stdtr(df[0], -abs(difference) / se[0])),
        se=float(se[0]),
        df=float(df[0]),
        level=level,
        question=question,
        estimator=ESTIMATORS[question],
        metric=metric.name,
        n_seeds_a=len(a.seeds),
        n_seeds_b=len(b.seeds),
        n_tasks=len(a.tasks),
        n_attempts=min(a.attempts, b.attempts),
        mde=minimum_detectable(float(se[0]), float(df[0]), level),
        notes=design_notes([a, b], metric, question),
    )


_MORE = {
    Question.THESE_CHECKPOINTS: "run more attempts per task",
    Question.TASKS_LIKE_THESE: "evaluate on more tasks",
    Question.METHOD_RETRAINED: "train more seeds",
    Question.METHOD_NEW_TASKS: "train more seeds and evaluate on more tasks",
}


def obstacle(
    arms: Sequence[Counts], metric: Metric, question: Question, level: float = 0.95
) -> tuple[str, str] | None:
    """Why these data cannot answer the question and what would help, or None if they can."""
    if not 0 < level < 1:
        raise DataError(f"level {level} is not between 0 and 1", key="level", remedy="0.95 means 95 %")
    if question.about_method:
        single = [arm.arm for arm in arms if len(arm.seeds) < 2 and not arm.untrained]
        if single:
            return (
                f"arm {single[0]!r} has one seed, which has no spread",
                "train 3 seeds, better 5, per arm",
            )
        if all(arm.untrained for arm in arms):
            return (
                "an untrained checkpoint cannot be retrained",
                f"ask about {Question.TASKS_LIKE_THESE}",
            )
    redraws_tasks = question in (Question.TASKS_LIKE_THESE, Question.METHOD_NEW_TASKS)
    if redraws_tasks and int(arms[0].cluster_labels.max()) < 1:
        return "all tasks are one cluster, which has no spread", "evaluate on tasks from more sources"
    needs_attempts = [
        arm for arm in arms if question is Question.THESE_CHECKPOINTS or (arm.untrained and not redraws_tasks)
    ]
    for arm in needs_attempts:
        if arm.attempts < 2 * metric.k:
            return (
                f"{metric.label} from {arm.attempts} attempts per task leaves its attempt noise unknown",
                f"run at least {2 * metric.k} attempts per task",
            )
    return None


def design_notes(arms: Sequence[Counts], metric: Metric, question: Question) -> tuple[str, ...]:
    """Sentences a reader of the number must see: the design, not the result."""
    notes = []
    if any(metric.coarse(arm.n) for arm in arms):
        notes.append(f"{metric.label} uses more than half of the attempts: run at least {2 * metric.k}")
    if any(arm.n.min() != arm.n.max() for arm in arms):
        notes.append("attempts per task differ; each task is averaged first")
    labels = arms[0].cluster_labels
    if int(labels.max()) + 1 < labels.size:
        notes.append(f"{labels.size} tasks in {int(labels.max()) + 1} clusters")
    for arm in arms:
        if arm.untrained and question.about_method:
            notes.append(f"{arm.arm} is an untrained checkpoint, held fixed")
        if question.about_method and 2 <= len(arm.seeds) < 5:
            notes.append(f"{arm.arm} has {len(arm.seeds)} seeds: the spread itself is poorly known")
    return tuple(notes)


def _constant_arm(
    arm: Counts, metric: Metric, question: Question, value: float, level: float
) -> Estimate | NotEstimable:
    """Zero observed spread: an exact one-sided bound where one exists, never an interval of zero width."""
    successes, attempts = int(arm.c.sum()), int(arm.n.sum())
    pooled = question is Question.THESE_CHECKPOINTS and metric.k == 1 and arm.n.min() == arm.n.max()
    if not (pooled and successes in (0, attempts)):
        reason = f"no variation between {question.resamples}: their noise cannot be estimated"
        return _refuse(question, (reason, _MORE[question]), [arm], metric, value, level)
    from scipy.stats import beta  # half a second, for a rare case

    bound = float(beta.ppf(level, 1, attempts))
    return Estimate(
        value=value,
        lo=0.0 if successes == 0 else 1 - bound,
        hi=bound if successes == 0 else 1.0,
        se=0.0,
        df=np.inf,
        level=level,
        question=question,
        estimator="pooled_clopper_pearson",
        metric=metric.name,
        n_seeds=len(arm.seeds),
        n_tasks=len(arm.tasks),
        n_attempts=arm.attempts,
        notes=(*design_notes([arm], metric, question), "every attempt ended alike: one-sided exact bound"),
    )


def _refuse(
    question: Question,
    obstacle_and_remedy: tuple[str, str],
    arms: Sequence[Counts],
    metric: Metric,
    value: float,
    level: float,
) -> NotEstimable:
    reason, remedy = obstacle_and_remedy
    tolerance: float | None = None
    notes: tuple[str, ...] = ()
    if len(arms) == 2 and question.about_method and all(len(arm.seeds) == 1 for arm in arms):
        easier = (
            Question.THESE_CHECKPOINTS if question is Question.METHOD_RETRAINED else Question.TASKS_LIKE_THESE
        )
        if obstacle(arms, metric, easier, level) is None:
            se, _, _ = combine(parts_for(easier, arms, [metric]))
            tolerance = seed_sd_tolerance(value, float(se[0]), level)
            if tolerance is None:
                notes = (f"not distinguishable even for {easier.value}",)
    return NotEstimable(
        question=question,
        reason=reason,
        remedy=remedy,
        value=value,
        metric=metric.name,
        n_seeds=tuple(len(arm.seeds) for arm in arms),
        n_tasks=len(arms[0].tasks),
        n_attempts=min(arm.attempts for arm in arms),
        seed_sd_tolerance=tolerance,
        notes=(*design_notes(arms, metric, question), *notes),
    )
