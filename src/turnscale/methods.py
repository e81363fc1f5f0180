"""A method is a row of choices: read, checked, resolved and called. Imports no tensor library by itself.

``configs/methods/<name>.yaml`` holds one method; ``extends: <name>`` starts from another row. Every parameter
of every choice is written out, and every number names its source.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from turnscale.axes import AXES, TERMS, Choice
from turnscale.config.load import NAME_RULE, Name, Plain, Strict, is_name, read_yaml, validate
from turnscale.config.schema import Label
from turnscale.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from turnscale.batch import Credit, TurnBatch

STUDY_OVERRIDE = "set by the study"


class Paper(Strict):
    """Where the method comes from.

    Attributes:
        arxiv: identifier, or null when there is none.
        read_via: how its formulas became known here, e.g. ``paper``, ``secondary sources``.
        status: ``published``, ``variant`` (of a published row) or ``reading`` (a reading of an unclear
        source).
    """

    arxiv: str | None
    read_via: str
    status: Literal["published", "variant", "reading"]


class Sampling(Strict):
    """How rollouts are drawn.

    Attributes:
        scheme: ``independent``; ``fork`` (siblings from a shared prefix); ``dynamic`` (groups of constant
            *success* are dropped and resampled, and counted as consumed).
        group_size: rollouts per group, or null for the study's scale to decide.
        context: what the policy sees while training: ``plain`` or ``skill``.
        evaluation_context: what it sees when evaluated.
        fork: where ``fork`` branches: at every turn, or where the entropy rose after an observation.
    """

    scheme: Literal["independent", "fork", "dynamic"] = "independent"
    group_size: int | None = Field(default=None, ge=1, le=1_000_000)
    context: Literal["plain", "skill"] = "plain"
    evaluation_context: Literal["plain", "skill"] = "plain"
    fork: Literal["every_turn", "entropy"] | None = None


class Twins(Strict):
    """Off-policy twin critics: two of states and two of state and turn, on one backbone.

    Attributes:
        polyak: share of the trained weights that enters the target weights at each optimiser step.
        replay: steps whose trajectories are replayed.
    """

    polyak: float = Field(gt=0.0, le=1.0)
    replay: int = Field(ge=1, le=1_000_000)


class Critic(Strict):
    """The critic.

    Attributes:
        heads: 0 (none), 1 or 2 (the second is the turn head).
        lambda_critic: decay per action token of its targets; 1 regresses the terminal reward.
        warmup: pre-trained on returns of the fixed starting policy.
        updates_per_policy_update: critic passes for each policy pass.
        trained_at: tokens at which the (token) head learns.
        turn_trained_at: tokens at which the turn head of a two-head critic learns.
        twins: both heads are twins and learn off-policy, or null.
    """

    heads: Literal[0, 1, 2] = 0
    lambda_critic: float = Field(default=1.0, ge=0.0, le=1.0)
    warmup: bool = False
    updates_per_policy_update: int = Field(default=1, ge=1, le=10_000)
    trained_at: Literal["tokens", "turn_first", "turn_last"] = "tokens"
    turn_trained_at: Literal["tokens", "turn_first", "turn_last"] = "turn_first"
    twins: Twins | None = None

    @property
    def outputs(self) -> int:
        """Outputs of the value head."""
        return 2 * self.heads if self.twins else self.heads


Choices = dict[str, Plain]
"""A choice's name and its parameters, which the registry checks."""


class Method(Strict):
    """One method. Build it with :func:`load_method`, which also checks what spans several fields."""

    name: Name
    title: Label
    summary: Annotated[str, Field(min_length=1)]
    paper: Paper
    train: bool
    sampling: Sampling = Sampling()
    shaping: Choices = Field(default={"name": "none"})
    credit_choice: Choices = Field(default={"name": "none"}, alias="credit")
    ratio: Choices = Field(default={"name": "token"})
    clip: Choices = Field(default={"name": "none"})
    aggregation: Choices = Field(default={"name": "token_mean"})
    normalisation: Choices = Field(default={"name": "none"})
    critic: Critic = Critic()
    terms: dict[str, Choices] = Field(default={})
    sources: dict[str, str] = Field(default={})
    identities: list[str] = Field(default=[])
    inert: dict[str, str] = Field(default={})

    def section(self, axis: str) -> dict[str, Any]:
        """The choice made on an axis, as written: its name and parameters."""
        return self.credit_choice if axis == "credit" else getattr(self, axis)

    def choice(self, axis: str) -> Choice:
        """The registry entry of the choice made on an axis."""
        return AXES[axis][self.section(axis)["name"]]

    def function(self, axis: str) -> Callable[..., Any]:
        """The function chosen on an axis, with its parameters bound."""
        return partial(self.choice(axis).load(), **_parameters(self.section(axis)))

    def term_functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """(name, function with parameters bound) of each extra term."""
        for name, params in self.terms.items():
            yield name, partial(TERMS[name].load(), **params)

    @property
    def needs(self) -> frozenset[str]:
        """Optional tensors of the batch the method reads: values, values_turn, logp_ref, logp_teacher, ..."""
        wanted: set[str] = set(self.choice("credit").needs)
        for name in self.terms:
            wanted |= set(TERMS[name].needs)
        return frozenset(wanted)

    @property
    def needs_critic(self) -> bool:
        """Whether a critic must be trained."""
        return self.critic.heads > 0

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities under the starting policy are needed."""
        return "logp_ref" in self.needs

    @property
    def needs_teacher(self) -> bool:
        """Whether log-probabilities under the privileged context are needed."""
        return "logp_teacher" in self.needs

    def credit(self, batch: TurnBatch) -> Credit:
        """Advantages (before batch normalisation) and critic targets of a whole batch, with logged shares."""
        from dataclasses import replace

        from turnscale.credit.shares import credit_shares

        shaped = batch.with_(reward=self.function("shaping")(batch))
        params = {"lam_critic": self.critic.lambda_critic} if self.critic.heads else {}
        result: Credit = self.function("credit")(shaped, **params)
        return replace(result, metrics={**result.metrics, **credit_shares(result.advantages, batch)})

    def normalise(self, advantages: Tensor, batch: TurnBatch) -> Tensor:
        """The advantages as the loss uses them, [B, T]; call once on the whole batch of a policy update."""
        return self.function("normalisation")(advantages, batch.action_mask)

    def resolved(self) -> dict[str, Any]:
        """What can change a number, as plain JSON values, for hashing: no name, prose or sources."""
        prose = {"name", "title", "summary", "paper", "sources", "identities", "inert"}
        row = self.model_dump(mode="json", by_alias=True, exclude=prose)
        if self.critic.twins is None:
            del row["critic"]["twins"]
        return row

    def documented(self) -> dict[str, Any]:
        """The resolved row with its prose and sources, as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True)

    def check(
        self, *, group_size: int | None = None, action_tokens: int | None = None, has_turns: bool = True
    ) -> list[str]:
        """What a study's setting means for this method.

        Args:
            group_size: rollouts per group in the study (the method's own when it names one).
            action_tokens: expected action tokens of a trajectory.
            has_turns: whether the environment gives a turn index.

        Returns:
            Warnings, one sentence each.

        Raises:
            ConfigError: a setting under which the method is not defined.
        """
        credit = self.credit_choice
        size = self.sampling.group_size or group_size
        where = f"method {self.name}"
        if not has_turns and (self.ratio["name"] == "turn" or self.aggregation["name"] == "turn_mean"):
            raise ConfigError(
                "a turn ratio or turn mean needs a turn index, and the environment gives none.",
                file=where,
                key="ratio" if self.ratio["name"] == "turn" else "aggregation",
                remedy="use the token ratio and token mean, or an environment with turns.",
            )
        if size == 1:
            _refuse_lone_group(self, where)
        warnings = []
        if credit["name"] == "length_adaptive_gae" and action_tokens is not None:
            lam = max(0.0, 1.0 - 1.0 / (credit["alpha"] * action_tokens))
            if lam == 0.0:
                warnings.append(
                    f"{self.name}: at {action_tokens} action tokens the length-adaptive lambda is 0, that is "
                    f"one-step TD; set credit.alpha above {1.0 / action_tokens:.3g}"
                )
        return warnings


_ROW_KEYS = {field.alias or name for name, field in Method.model_fields.items()}


def _parameters(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section's parameters without its name."""
    return {key: value for key, value in section.items() if key != "name"}


def methods_dir() -> Path:
    """``configs/methods`` under the working directory, else beside this package's source tree.

    Raises:
        ConfigError: neither exists.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / "configs" / "methods").is_dir():
            return root / "configs" / "methods"
    raise ConfigError("there is no folder configs/methods.", remedy="run from the project's root.")


def list_methods(directory: Path | None = None) -> list[str]:
    """Names of all method rows, sorted. Raises ConfigError where there is no folder of rows."""
    folder = directory or methods_dir()
    if not folder.is_dir():
        raise ConfigError(
            "is no folder of methods.",
            file=folder,
            remedy="name one like configs/methods, or run in the project.",
        )
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_method(
    name_or_path: str | Path, overrides: Mapping[str, Any] | None = None, *, directory: Path | None = None
) -> Method:
    """Read, complete and check a method.

    Args:
        name_or_path: name of a row of ``configs/methods``, or path of a YAML file.
        overrides: dotted key -> value, e.g. ``{"credit.beta": 0.5}``. An override may only change a key that
            exists; ``{"ratio": {"name": "token"}}`` replaces a whole section.
        directory: where rows are looked up, ``configs/methods`` by default.

    Raises:
        ConfigError: unknown name, key or choice, a value of the wrong type or out of range, a number without
            a source, or an impossible combination.
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        if not is_name(str(name_or_path)):
            raise ConfigError(
                f"{reprlib.repr(str(name_or_path))} is no name of a method: {NAME_RULE}.",
                key="method",
                remedy="see `turnscale methods list`.",
            )
        path = (directory or methods_dir()) / f"{name_or_path}.yaml"
    raw = _read_row(path, ())
    for key, value in (overrides or {}).items():
        _override(raw, key, value, path)
    return _build(raw, path)


def _read_row(path: Path, seen: tuple[str, ...]) -> dict[str, Any]:
    """The row with its ``extends`` chain merged in."""
    if not path.is_file():
        known = list_methods(path.parent)
        close = difflib.get_close_matches(path.stem, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known methods: {', '.join(known)}."
        raise ConfigError(f"there is no method {path.stem!r}.", file=path, remedy=hint)
    raw = read_yaml(path)
    raw["name"] = path.stem
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    if not isinstance(parent, str) or not is_name(parent):
        raise ConfigError(
            f"{reprlib.repr(parent)} is no name of a method: {NAME_RULE}.",
            file=path,
            key="extends",
            remedy="name another row of the same folder, without ending.",
        )
    if parent in seen or parent == path.stem:
        raise ConfigError(
            "rows extend each other in a circle.", file=path, key="extends", remedy="let one stand alone."
        )
    base = _read_row(path.parent / f"{parent}.yaml", (*seen, path.stem))
    base["identities"], base["inert"] = [], {}
    merged = _merge(base, raw)
    own = _sources(raw, path)
    merged["sources"] = {
        key: source for key, source in _sources(base, path).items() if _lookup(merged, key) is not None
    } | own
    return merged


def _sources(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The row's ``sources``, or none. Raises ConfigError for anything but a mapping."""
    sources = raw.get("sources", {})
    if not isinstance(sources, dict):
        raise ConfigError(
            "must be a mapping of keys to values.",
            file=path,
            key="sources",
            remedy="write each number's dotted key with its source.",
        )
    return sources


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Sections merged key by key; a section that names another choice, and ``terms``, are replaced whole."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        whole = key == "terms" or not (isinstance(value, dict) and isinstance(old, dict))
        renamed = isinstance(value, dict) and isinstance(old, dict) and value.get("name", old.get("name"))
        if not whole and renamed == (old or {}).get("name"):
            merged[key] = {**(old or {}), **value}
        else:
            merged[key] = value
    return merged


def _lookup(raw: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted key, or None."""
    value: Any = raw
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _override(raw: dict[str, Any], dotted: str, value: Any, path: Path) -> None:
    """Set a dotted key in place and mark its source."""
    *parents, leaf = dotted.split(".")
    sections = set(AXES) | {"terms", "critic", "sampling"}
    if dotted.split(".")[0] not in sections:
        raise ConfigError(
            "an override sets a value of the method itself.",
            file=path,
            key=dotted,
            remedy=f"override a key of {', '.join(sorted(sections))}.",
        )
    place: Any = raw
    for part in parents:
        if part in {"critic", "sampling"}:
            place.setdefault(part, {})
        if not part or part not in place or not isinstance(place[part], dict):
            raise ConfigError(
                f"there is no {part!r} to override.", file=path, key=dotted, remedy="check the row's keys."
            )
        place[part] = dict(place[part])
        place = place[part]
    typed = parents and parents[0] in {"critic", "sampling"}
    if parents and not typed and leaf not in place:
        raise ConfigError(
            f"this choice has no parameter {leaf!r}.",
            file=path,
            key=dotted,
            remedy=f"its keys are {', '.join(place)}.",
        )
    place[leaf] = value
    sources = dict(_sources(raw, path))
    for key in [k for k in sources if k == dotted or k.startswith(f"{dotted}.")]:
        del sources[key]
    for key, _ in _numbers(value, dotted):
        sources[key] = STUDY_OVERRIDE
    raw["sources"] = sources


def _numbers(value: Any, dotted: str) -> Iterator[tuple[str, float]]:
    """(dotted key, number) of every numeric leaf."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{dotted}.{key}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield dotted, value


def _build(raw: dict[str, Any], path: Path) -> Method:
    """The checked method."""
    raw = dict(raw)
    for key in raw.keys() - _ROW_KEYS:  # a misspelt section leaves others lacking: name it first
        validate(Method, {key: raw[key]}, path)
    for axis in AXES:
        if axis in raw:
            raw[axis] = _checked_choice(raw[axis], AXES[axis], axis, path)
    terms = raw.get("terms") or {}
    if not isinstance(terms, dict):
        raise ConfigError(
            "maps a term's name to its parameters.",
            file=path,
            key="terms",
            remedy="write {term: {key: value}}.",
        )
    checked = {}
    for name, params in terms.items():
        if not isinstance(params, (dict, type(None))):
            raise ConfigError(
                "must be a mapping of parameters to values.",
                file=path,
                key=f"terms.{name}",
                remedy="write {key: value}.",
            )
        section = _checked_choice({**(params or {}), "name": name}, TERMS, f"terms.{name}", path)
        checked[name] = _parameters(section)
    raw["terms"] = checked
    method = validate(Method, raw, path)
    _check_sources(raw, path)
    _check_combination(method, path)
    return method


def _checked_choice(section: Any, entries: Mapping[str, Choice], key: str, path: Path) -> dict[str, Any]:
    """The section with its parameters checked against the registry."""
    if not isinstance(section, dict) or not isinstance(section.get("name"), str):
        raise ConfigError("must be a mapping with a name.", file=path, key=key, remedy="write {name: ...}.")
    name = section["name"]
    if name not in entries:
        raise ConfigError(
            f"unknown choice {name!r}.", file=path, key=f"{key}.name", remedy=f"one of {', '.join(entries)}."
        )
    params = entries[name].params
    given = _parameters(section)
    for extra in given.keys() - params.keys():
        raise ConfigError(
            f"{name} has no parameter {extra!r}.",
            file=path,
            key=f"{key}.{extra}",
            remedy=f"its parameters are {', '.join(params) or 'none'}.",
        )
    checked: dict[str, Any] = {"name": name}
    for param, kind in params.items():
        if param not in given:
            raise ConfigError(
                f"{name} needs {param!r}.",
                file=path,
                key=f"{key}.{param}",
                remedy="write it, with its source.",
            )
        try:
            checked[param] = kind.check(given[param])
        except ValueError as error:
            raise ConfigError(
                f"{error}.", file=path, key=f"{key}.{param}", remedy="give a value in range."
            ) from None
    return checked


def _check_sources(raw: Mapping[str, Any], path: Path) -> None:
    """Every number has a source and every source a number."""
    sources = _sources(raw, path)
    sections = [*AXES, "terms", "critic", "sampling"]
    numbers = {key for section in sections for key, _ in _numbers(raw.get(section), section)}
    for key in sorted(numbers - sources.keys() - {"critic.heads"}):
        raise ConfigError(
            "this number has no source.",
            file=path,
            key=f"sources.{key}",
            remedy="name where it is published, or write 'not published: our choice'.",
        )
    for key in sorted(sources.keys() - numbers):
        raise ConfigError(
            "is a source of a number that is not there.",
            file=path,
            key=f"sources.{key}",
            remedy="remove it, or correct the key.",
        )


def _check_combination(method: Method, path: Path) -> None:
    """Choices that do not fit each other."""
    needed = {"values": 1, "values_turn": 2}
    heads = max((needed.get(tensor, 0) for tensor in method.needs), default=0)
    aggregation, scheme = method.aggregation["name"], method.sampling.scheme
    problems = [
        (
            method.train and method.critic.heads != heads,
            "critic.heads",
            f"the credit {method.credit_choice['name']!r} needs a critic of {heads} head(s)",
            f"set critic.heads to {heads}.",
        ),
        (
            (method.credit_choice["name"] == "utterance") != (method.critic.twins is not None),
            "critic.twins",
            "utterance credit and off-policy twin critics need each other",
            "set critic.twins with the credit utterance only.",
        ),
        (
            method.critic.twins is not None and method.critic.warmup,
            "critic.warmup",
            "twin critics begin cold: the warm-up regresses the undiscounted reward with one head each",
            "set critic.warmup to false.",
        ),
        (
            method.ratio["name"] == "sequence" and aggregation != "sequence_mean",
            "aggregation.name",
            f"the sequence ratio is one number a trajectory; {aggregation} would weigh it by length",
            "use sequence_mean.",
        ),
        (
            method.credit_choice.get("scale") == "std" and method.normalisation["name"] != "none",
            "normalisation.name",
            "the advantages would be normalised twice, by group and by batch",
            "set normalisation to none, or credit.scale to none.",
        ),
        (
            ("fork_turn" in method.needs) != (scheme == "fork") and method.train,
            "sampling.scheme",
            "prefix-forked sampling and tree credit need each other",
            "use scheme fork with the tree credit only.",
        ),
        (
            (scheme == "fork") != (method.sampling.fork is not None),
            "sampling.fork",
            "where to fork belongs to scheme fork, and is required there",
            "set sampling.fork to every_turn or entropy.",
        ),
    ]
    for wrong, key, problem, remedy in problems:
        if wrong:
            raise ConfigError(f"{problem}.", file=path, key=key, remedy=remedy)
    if method.train and method.credit_choice["name"] == "none" and not method.terms:
        raise ConfigError(
            "nothing to learn from.", file=path, key="credit.name", remedy="name a credit or a term."
        )
    if method.sampling.group_size == 1:
        _refuse_lone_group(method, path)


def _refuse_lone_group(method: Method, file: str | Path) -> None:
    """A group of one is an error unless the credit declares what it gets."""
    if method.credit_choice.get("singleton") == "forbid" or method.sampling.scheme == "dynamic":
        raise ConfigError(
            "a group of one has no relative advantage.",
            file=file,
            key="sampling.group_size",
            remedy="sample at least 2 rollouts per group, or declare credit.singleton as zero or raw.",
        )
