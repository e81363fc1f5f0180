"""Running a reader on many spoilt files: it accepts or refuses in words, never crashes, hangs or leaves anything."""

from __future__ import annotations

import hashlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import spoilt
from turnscale.errors import TurnscaleError, complaint

CASES = int(os.environ.get("TURNSCALE_FUZZ_CASES", "25"))
"""Cases of each target; 2,000 in ``make test-fuzz``."""

SECONDS = 60
"""A case that takes longer hangs."""

SEEDS = st.integers(0, 2**48)


def fuzz(
    place: Path, good: bytes, kind: str, read: Callable[[Path], object], watched: Path | None = None
) -> Counter[str]:
    """Spoil a file in ``CASES`` ways and read each.

    Args:
        place: where the spoilt file is written.
        good: the good file, which must be accepted.
        kind: ``yaml``, ``json`` or ``text``.
        read: the reader under test; what it writes goes under ``watched``.
        watched: folder that a refusal must leave as it was.

    Returns:
        Counts of ``accepted`` and ``refused``.
    """
    counts: Counter[str] = Counter()

    def one(data: bytes) -> None:
        place.write_bytes(data)
        before = None if watched is None else content(watched)
        try:
            with within(SECONDS):
                read(place)
        except TurnscaleError as error:
            counts["refused"] += 1
            check_words(error)
            assert watched is None or content(watched) == before, "a refused file left something behind"
        else:
            counts["accepted"] += 1

    one(good)
    assert counts["accepted"] == 1, "the good file is refused"

    @settings(
        max_examples=CASES,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],  # a smaller number is no simpler file
        suppress_health_check=list(HealthCheck),
    )
    @given(SEEDS)
    def run(seed: int) -> None:
        one(spoilt(good, seed, kind))

    run()
    assert counts["refused"] > CASES / 10, counts
    return counts


def check_words(error: TurnscaleError) -> None:
    """An error says something, ends its problem with a full stop and fits on one printable line."""
    assert error.problem.strip(), error
    assert error.remedy is None or error.problem.endswith((".", "?")), str(error)
    assert str(error).count("Remedy:") <= 1, str(error)
    line = complaint(error)
    assert line.isprintable()
    assert len(line) < 3000, line[:500]
    line.encode()


def content(folder: Path) -> dict[str, str]:
    """Every file under a folder with the hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail a block that takes longer."""

    def late(signum: int, frame: object) -> None:
        raise AssertionError(f"no answer within {seconds} seconds")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
