"""What the commands do: read, audit, print, write. No decision about statistics is made here."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from turnscale.audit.document import Document, to_latex, to_markdown, to_terminal
from turnscale.errors import ConfigError, DataError
from turnscale.files import replacing, write_text

if TYPE_CHECKING:
    import pandas as pd


def is_ledger(files: Sequence[Path]) -> bool:
    """True for one YAML file. Raises ConfigError for a ledger among other files."""
    yaml = [file for file in files if file.suffix in (".yaml", ".yml")]
    if yaml and len(files) > 1:
        raise ConfigError(
            "a ledger is audited alone.", file=yaml[0], remedy="give one ledger, or only tables."
        )
    return bool(yaml)


def refuse_options(what: str, other: str, **options: Any) -> None:
    """Raise ConfigError for an option that was given and has no meaning for ``what``, but for ``other``."""
    for name, value in options.items():
        if value:
            raise ConfigError(f"has no meaning for {what}.", key=f"--{name}", remedy=f"use it with {other}.")


def audit_ledger_file(
    path: Path, console: Console, out: Path | None, comparisons: Path | None, figures: Path | None = None
) -> list[Path]:
    """Audit a ledger, print the report, write its files under ``out`` and its plot under ``figures``.

    Returns the paths written. Raises ConfigError for ``figures`` without ``out``.
    """
    from turnscale.audit.ledger import load_ledger
    from turnscale.audit.ledger_data import as_json, tidy_rows
    from turnscale.audit.ledger_report import audit_ledger, document

    if figures is not None and out is None:
        raise ConfigError("has no meaning without --out.", key="--figures", remedy="add --out.")
    ledger = load_ledger(path)
    local = []
    if comparisons is not None:
        from turnscale.audit.local import local_findings, read_comparisons

        local = local_findings(ledger, read_comparisons(comparisons))
    audit = audit_ledger(ledger, local)
    to_terminal(document(audit), console)
    if out is None:
        return []
    stem = f"audit_{ledger.study}"
    written = _write(document(audit, reasons=True), tidy_rows(audit), as_json(audit), out, stem)
    from turnscale.audit.forest import from_ledger
    from turnscale.audit.forest_drawing import save

    make_folder(figures or out)
    return written + save(from_ledger(audit), figures or out, stem)


def audit_tables(
    files: Sequence[Path],
    console: Console,
    out: Path | None,
    comparisons: Path | None,
    *,
    metrics: Sequence[str],
    reference: str | None,
    untrained: Sequence[str],
    checkpoint: str | None,
    intersect: bool,
    ragged: bool,
    figures: Path | None = None,
) -> list[Path]:
    """Audit outcome tables taken together, print the report, write its files. Returns the paths written."""
    from turnscale.audit.from_outcomes import audit_outcomes
    from turnscale.audit.outcomes_report import document, tidy_rows
    from turnscale.audit.panels import panels
    from turnscale.audit.seed_scores import audit_scores
    from turnscale.audit.table import check_once, check_outcomes, check_scores, is_score_table, read_table
    from turnscale.stats.passk import Metric

    if comparisons is not None:
        raise ConfigError(
            "belongs to a ledger.", key="--comparisons", remedy="give a ledger (.yaml) with it."
        )
    if figures is not None and out is None:
        raise ConfigError("has no meaning without --out.", key="--figures", remedy="add --out.")
    name = files[0] if len(files) == 1 else Path(", ".join(file.name for file in files))
    frames = {file: read_table(file) for file in files}
    title = f"Audit of {name.name}"
    if all(is_score_table(frame) for frame in frames.values()):
        refuse_options(
            "a table of scores", "an outcomes table of every task and attempt", metric=metrics, untrained=untrained,
            checkpoint=checkpoint, intersect=intersect, ragged=ragged,
        )  # fmt: skip
        table = _joined([check_scores(frame, file) for file, frame in frames.items()], name)
        check_once(table, name)
        audits = audit_scores(table, name, reference=reference)
    else:
        table = _joined([check_outcomes(frame, file) for file, frame in frames.items()], name)
        parts = panels(table, name, intersect=intersect, ragged=ragged, checkpoint=checkpoint)
        wanted = [Metric.parse(m) for m in metrics or ["pass_at_1"]]
        audits = audit_outcomes(parts, wanted, name, reference=reference, untrained=untrained)
    report = document(audits, title)
    to_terminal(report, console)
    if out is None:
        return []
    rows = tidy_rows(audits)
    stem = f"audit_{files[0].stem}"
    written = _write(report, rows, {"files": [file.name for file in files], "comparisons": rows}, out, stem)
    from turnscale.audit.forest import from_pairs
    from turnscale.audit.forest_drawing import save

    make_folder(figures or out)
    forest = from_pairs(audits, title)
    return written + (save(forest, figures or out, stem) if forest.rows else [])


def _joined(tables: Sequence[pd.DataFrame], name: Path) -> pd.DataFrame:
    """Tables one below the other. Raises DataError for a column that only some have."""
    import pandas as pd

    table = pd.concat(tables, ignore_index=True)
    if table.isna().any().any():
        column = str(table.columns[table.isna().any()][0])
        raise DataError(
            f"only some of the files have the column {column!r}.",
            file=name,
            key=column,
            remedy="give it in all files or in none.",
        )
    return table


def make_folder(folder: Path) -> None:
    """Make a folder for output. Raises ConfigError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(
            f"cannot be made ({problem.strerror}).", file=folder, remedy="choose another folder."
        ) from None


def _write(report: Document, rows: list[dict[str, Any]], value: Any, out: Path, stem: str) -> list[Path]:
    make_folder(out)
    paths = [out / f"{stem}.{suffix}" for suffix in ("md", "tex", "csv", "json")]
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    body = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    for path, text in zip(
        paths, (to_markdown(report), to_latex(report), table.getvalue(), body), strict=True
    ):
        write_text(text, path)
    return paths


def write_table(table: Any, path: Path) -> None:
    """Write an imported table as CSV or parquet. Raises DataError for another suffix."""
    if path.suffix not in (".csv", ".parquet"):
        raise DataError("is neither .csv nor .parquet.", file=path, key="--out", remedy="choose one of them.")
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            table.to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, index=False)


def import_file(
    source: str,
    file: str,
    *,
    arm: str | None,
    seed: int | None,
    field: str | None,
    filter_name: str | None,
    threshold: float | None,
    experiment: str | None,
    arm_key: str,
    seed_key: str,
    percent: bool,
) -> Any:
    """An :class:`turnscale.audit.importers.Imported` from the named tool. Raises DataError for a missing option."""
    from turnscale.audit import importers

    def need(name: str, value: Any) -> Any:
        if value is None:
            raise DataError(f"{source} needs it.", key=f"--{name}", remedy=f"add --{name}.")
        return value

    if source == "inspect":
        return importers.read_inspect(file, seed=need("seed", seed), arm=arm, scorer=field)
    if source == "lm-eval":
        return importers.read_lm_eval(
            file, seed=need("seed", seed), arm=need("arm", arm), metric=field, filter_name=filter_name,
            threshold=threshold,
        )  # fmt: skip
    if source in ("verl", "trl"):
        read = importers.read_verl if source == "verl" else importers.read_trl
        return read(file, seed=need("seed", seed), arm=need("arm", arm), outcome=field, threshold=threshold)
    if source == "mlflow":
        table = field is not None and field.endswith((".csv", ".parquet"))
        return importers.read_mlflow(
            file, need("experiment", experiment), arm_key=arm_key, seed_key=seed_key,
            metric=None if table else need("field", field), artifact=field if table else None,
        )  # fmt: skip
    if source == "wandb":
        return importers.read_wandb(
            file, arm_column=arm_key, seed_column=seed_key, score_column=need("field", field), percent=percent
        )
    raise DataError(
        f"no importer {source!r}.", key="source", remedy="use inspect, lm-eval, verl, trl, mlflow or wandb."
    )


def grim_words(value: str, n: str, rollouts: int, k: int, estimator: Any) -> str:
    """One sentence: the successes a percentage stands for, or that there are none, or which sizes fit."""
    from turnscale.stats.grim import feasible_share, feasible_sizes, grim

    decimals = len(value.partition(".")[2])
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"{value!r} is not a percentage.",
            key="value",
            remedy="write it with a decimal point, without a % sign.",
        )
    sizes = _sizes(n)
    of = f"{'pass^' if estimator == 'pass_hat' else 'pass@'}{k}, {rollouts} attempt{'s' * (rollouts != 1)} per task"
    if len(sizes) > 1:
        fits = feasible_sizes([value], decimals, sizes, rollouts, k, estimator)
        shown = ", ".join(map(str, fits[:40])) + (" …" if len(fits) > 40 else "")
        return f"{value} % ({of}): {len(fits)} of {len(sizes)} numbers of tasks fit: {shown or 'none'}"
    found = grim(value, decimals, sizes[0], rollouts, k, estimator)
    total = _count(found.denominator, ",")
    if not found.consistent:
        return f"{value} % ({of}, {sizes[0]} tasks): impossible, no count out of {total} rounds to it"
    counts = found.feasible
    shown = _count(counts[0]) if len(counts) == 1 else f"{_count(counts[0])} to {_count(counts[-1])}"
    text = f"{value} % ({of}, {sizes[0]} tasks): {shown} of {total}"
    if k == 1 and sizes[0] * rollouts <= 100_000:
        text += (
            f" (a random percentage fits with probability {feasible_share(decimals, sizes[0], rollouts):.1%})"
        )
    return text


def _count(number: int, style: str = "") -> str:
    """A whole number in full, or its power of ten where nobody could read it."""
    return format(number, style) if number < 10**15 else f"about 10^{len(str(number)) - 1}"


def _sizes(n: str) -> range:
    first, dash, last = n.partition("-")
    try:
        sizes = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        sizes = range(0)
    if not sizes or sizes[0] < 1 or sizes[-1] > 10_000_000 or len(sizes) > 100_000:
        raise DataError(
            f"{n!r} is not a number of tasks.", key="--n", remedy="give 103, or a range such as 20-205."
        )
    return sizes


def power_words(gap: float, sd: float, seeds: int | None, power: float) -> list[str]:
    """Sentences on seeds needed, and on what ``seeds`` per arm can see."""
    from turnscale.audit.preplan import detectable_gap, needed
    from turnscale.stats.power import check_points, power_two_sample

    check_points(abs(gap), "--gap")
    check_points(sd, "--sd")
    if not 0.05 < power < 1:
        raise DataError(
            f"{power} is not a power.", key="--power", remedy="give a probability above .05, below 1."
        )
    count = needed(abs(gap), sd, power)
    lines = [
        f"A gap of {gap:g} points at an across-seed sd of {sd:g} points needs "
        + (f"{count:,} seeds per arm" if count is not None else "more than 1,000,000 seeds per arm")
        + f" for {power:.0%} power."
    ]
    if count is not None and count < 4:
        lines.append(
            "So few seeds cannot estimate their own sd: with 3, its 95 % interval is [0.52, 6.3] times it."
        )
    for n in (seeds,) if seeds is not None else (3, 5, 10):
        lines.append(
            f"{n} seeds per arm find it with probability {power_two_sample(gap, sd, n, n):.0%}; the smallest gap "
            f"they find with {power:.0%} is {detectable_gap(sd, n, power):.1f} points."
        )
    lines.append("Tasks are held fixed; new tasks add their own variance.")
    return lines
