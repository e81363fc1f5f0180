"""Frozen panels: the lists of tasks that train, validate and test, fixed by hash and disjoint."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnscale.envs.protocol import Family, Task
from turnscale.errors import ConfigError, TaskError
from turnscale.files import write_text

FORMAT = 1


@dataclass(frozen=True)
class Panels:
    """The frozen tasks of one family.

    Attributes:
        family, version: the generator.
        tasks: the tasks of each split, in order.
        content: content hash (16 hex digits) of every task, by task hash. Two tasks with different identities
            but equal content would leak from one split into another; the disjointness check compares both.
    """

    family: str
    version: str
    tasks: Mapping[str, tuple[Task, ...]]
    content: Mapping[str, str]

    def split(self, name: str) -> list[Task]:
        """The tasks of a split."""
        if name not in self.tasks:
            raise TaskError(
                f"the panels of {self.family} have no split {name!r}.",
                key=name,
                remedy=f"use one of {', '.join(self.tasks)}.",
            )
        return list(self.tasks[name])

    @property
    def hash(self) -> str:
        """16 hex digits over all task and content hashes in order: the identity of the panels' content."""
        rows = {s: [[t.hash, self.content[t.hash]] for t in ts] for s, ts in self.tasks.items()}
        return _digest(json.dumps([self.family, self.version, rows], sort_keys=True))

    def save(self, path: str | Path) -> None:
        """Write the panels as JSON, one task a line, by temporary file and rename."""
        head = {"format": FORMAT, "family": self.family, "version": self.version, "hash": self.hash}
        splits = []
        for split, tasks in self.tasks.items():
            rows = ",\n".join(json.dumps(self._row(task), sort_keys=True) for task in tasks)
            splits.append(f"{json.dumps(split)}: [\n{rows}\n]")
        body = ",\n".join(splits)
        text = f'{json.dumps(head)[:-1]}, "splits": {{\n{body}\n}}}}\n'
        write_text(text, Path(path))

    def _row(self, task: Task) -> dict[str, Any]:
        return {
            "index": task.index,
            "hash": task.hash,
            "content": self.content[task.hash],
            "params": dict(task.params),
        }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def split_sizes(
    panels: Mapping[str, Any], benchmarks: Sequence[str], file: str | Path | None = None
) -> dict[str, int]:
    """Number of tasks of every split.

    Args:
        panels: ``train``, ``validation`` and ``test``, the last one number for every benchmark or a number for each.
        benchmarks: the family's test benchmarks.
        file: the scale, named in errors.

    Raises:
        ConfigError: ``test`` names other benchmarks than the family has.
    """
    test = panels["test"]
    if isinstance(test, int):
        test = dict.fromkeys(benchmarks, test)
    wrong = [*sorted(set(test) - set(benchmarks)), *(name for name in benchmarks if name not in test)]
    if wrong:
        unknown = wrong[0] in test
        raise ConfigError(
            "is no test benchmark of the family." if unknown else "is absent: a mapping gives each its size.",
            file=file,
            key=f"panels.test.{wrong[0]}",
            remedy=f"the benchmarks are {', '.join(benchmarks)}; give each its tasks, or one number for all.",
        )
    sizes = {name: int(panels[name]) for name in ("train", "validation")}
    return sizes | {name: int(test[name]) for name in benchmarks}


def make_panels(family: Family, sizes: Mapping[str, int]) -> Panels:
    """Freeze the first ``sizes[split]`` tasks of each split whose content no other task of the panels has.

    Test benchmarks choose first, then validation, then training, so that where a generator of few distinct
    tasks repeats itself across its splits, it is the training split that gives way. Raises TaskError when a
    split has too few distinct tasks.
    """
    content: dict[str, str] = {}
    tasks: dict[str, tuple[Task, ...]] = {}
    for split in sorted(sizes, key=lambda s: (s == "train", s == "validation")):
        tasks[split] = _distinct(family, split, sizes[split], content)
    panels = Panels(family.name, family.version, {split: tasks[split] for split in sizes}, content)
    check_disjoint(panels)
    return panels


def _distinct(family: Family, split: str, count: int, content: dict[str, str]) -> tuple[Task, ...]:
    """The first ``count`` tasks of a split with content not in ``content`` (task hash -> digest), added to it."""
    taken = set(content.values())
    chosen: list[Task] = []
    available = family.size(split)
    index = 0
    while len(chosen) < count and (available is None or index < available):
        task = family.task(split, index)
        digest = _digest(family.content(task))
        if digest not in taken:
            taken.add(digest)
            content[task.hash] = digest
            chosen.append(task)
        index += 1
    if len(chosen) < max(count, 1):
        raise TaskError(
            f"{count} tasks were asked of a split that has {len(chosen)} distinct ones.",
            key=split,
            remedy="ask for at least one task and for no more than there are.",
        )
    return tuple(chosen)


def check_disjoint(panels: Panels, file: str | Path | None = None) -> None:
    """Raise TaskError, naming the task, if a task occurs twice or two tasks have the same content."""
    identities: dict[str, str] = {}
    contents: dict[str, tuple[str, str]] = {}
    for split, tasks in panels.tasks.items():
        for task in tasks:
            if task.hash in identities:
                raise TaskError(
                    f"task {task.hash} is in {identities[task.hash]} and again in {split}.",
                    file=file,
                    key=split,
                    remedy="remove it from one of them; the splits of a panel must be disjoint.",
                )
            identities[task.hash] = split
            other, other_hash = contents.setdefault(panels.content[task.hash], (split, task.hash))
            if other_hash != task.hash:
                raise TaskError(
                    f"task {task.hash} of {split} has the same content as task {other_hash} of {other}.",
                    file=file,
                    key=split,
                    remedy="remove one of them; a test task must not be seen in training.",
                )


def load_panels(path: str | Path, family: Family | None = None) -> Panels:
    """Read panels and verify them: recomputed task hashes, the panels' hash, and disjointness.

    With ``family``, also regenerate every task and compare its identity and content, so that panels frozen
    with another generator, other parameters or other benchmark files are refused.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text())
        panels, stored = _parse(data)
        frozen_hash, frozen_format = data["hash"], data["format"]
    except OSError as error:
        raise TaskError(
            f"the panels cannot be read ({error.strerror}).", file=path, remedy="freeze the panels first."
        ) from error
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise TaskError(
            f"this is not a panel file ({type(error).__name__}: {reason}).",
            file=path,
            remedy="freeze the panels anew.",
        ) from None
    if frozen_format != FORMAT:
        raise TaskError(
            f"panel format {reprlib.repr(frozen_format)} is not {FORMAT}.",
            file=path,
            key="format",
            remedy="freeze the panels anew.",
        )
    for split, tasks in panels.tasks.items():
        for task, claimed in zip(tasks, stored[split], strict=True):
            if task.hash != claimed:
                raise TaskError(
                    f"task {task.index} has hash {task.hash}, but the file says {reprlib.repr(claimed)}.",
                    file=path,
                    key=split,
                    remedy="the file was edited or belongs to another version; freeze the panels anew.",
                )
    if panels.hash != frozen_hash:
        raise TaskError(
            f"the content hash is {panels.hash}, but the file says {reprlib.repr(frozen_hash)}.",
            file=path,
            key="hash",
            remedy="the file was edited; freeze the panels anew.",
        )
    check_disjoint(panels, path)
    if family is not None:
        _check_family(panels, family, path)
    return panels


def _parse(data: Any) -> tuple[Panels, dict[str, list[str]]]:
    family, version = str(data["family"]), str(data["version"])
    tasks: dict[str, tuple[Task, ...]] = {}
    content: dict[str, str] = {}
    stored: dict[str, list[str]] = {}
    for split, rows in data["splits"].items():
        tasks[split] = tuple(Task(family, version, split, int(r["index"]), dict(r["params"])) for r in rows)
        stored[split] = [str(r["hash"]) for r in rows]
        content.update({t.hash: str(r["content"]) for t, r in zip(tasks[split], rows, strict=True)})
    return Panels(family, version, tasks, content), stored


def _check_family(panels: Panels, family: Family, path: Path) -> None:
    if (panels.family, panels.version) != (family.name, family.version):
        raise TaskError(
            f"the panels are of {panels.family} {panels.version}, not of {family.name} {family.version}.",
            file=path,
            key="version",
            remedy="freeze the panels anew with this family.",
        )
    for split, tasks in panels.tasks.items():
        for task in tasks:
            fresh = family.task(split, task.index)
            if fresh.hash != task.hash or _digest(family.content(fresh)) != panels.content[task.hash]:
                raise TaskError(
                    f"task {task.hash} is no longer what the family generates.",
                    file=path,
                    key=split,
                    remedy="its parameters or data files changed; freeze the panels anew.",
                )
