"""Reading YAML into validated models, with errors that name the file, the key and the remedy.

All that a configuration file, a ledger or a specification may hold is checked here and nowhere else.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from turnscale.config.parse import ParseError, parse_yaml
from turnscale.errors import ConfigError


class Strict(BaseModel):
    """Base of every configuration section.

    Unknown keys are errors, nothing is converted silently ("3" and true are no numbers) and values do not change
    afterwards.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Section = TypeVar("Section", bound=BaseModel)

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,62}[A-Za-z0-9+])?")
NAME_RULE = (
    "a name has 1 to 64 letters (a to z), digits, '.', '_', '+' and '-', begins with a letter or digit and does not "
    "end with '.', '_' or '-'"
)


def is_name(text: str) -> bool:
    """Whether a text may name a study, a scale, a cell and the like: names become file names, tags and arguments."""
    return NAME.fullmatch(text) is not None


def check_name(text: str) -> str:
    """The name itself.

    Raises:
        ValueError: it may not be a name.
    """
    if not is_name(text):
        raise ValueError(NAME_RULE)
    return text


def plain_value(value: Any) -> Any:
    """A value of free keys, itself.

    Raises:
        ValueError: it is not plain JSON with finite numbers, and so has no identity.
    """
    if isinstance(value, Mapping):
        for item in value.values():
            plain_value(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            plain_value(item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
    elif isinstance(value, int):
        if abs(value) > 2**63:
            raise ValueError("a number is too large")
    elif not (value is None or isinstance(value, str)):
        raise ValueError(f"{type(value).__name__} is not text, a number, a list or a mapping")
    return value


Name = Annotated[str, AfterValidator(check_name)]
"""Names become file names, MLflow tags and LaTeX cells: letters, digits, '.', '_', '+', '-', at most 64."""

Plain = Annotated[Any, AfterValidator(plain_value)]
"""Any plain JSON value with finite numbers."""


def config_path(folder: str, name: str, root: Path = Path()) -> Path:
    """``configs/<folder>/<name>.yaml``.

    Raises:
        ConfigError: the name may not be one, e.g. leads out of the folder.
    """
    if not isinstance(name, str) or not is_name(name):
        raise ConfigError(
            f"{reprlib.repr(name)} cannot be a file of configs/{folder}: {NAME_RULE}.",
            key=folder,
            remedy="give the file's name without folder and ending.",
        )
    return root / "configs" / folder / f"{name}.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, is not UTF-8, is not plain YAML, writes a key twice or does not hold a
            mapping.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError("is not a file.", file=path, remedy="check the path.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = sorted(p.stem for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        known = f"choose one of: {', '.join(near)}." if near else "check the path."
        raise ConfigError("there is no such file.", file=path, remedy=known) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text.", file=path, remedy="save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read ({reason}).", file=path, remedy="check the path.") from None
    try:
        value = parse_yaml(text)
    except ParseError as error:
        key = None if error.line is None else f"line {error.line}"
        raise ConfigError(error.problem, file=path, key=key, remedy=error.remedy) from None
    if not isinstance(value, dict):
        raise ConfigError(
            "must hold a mapping of keys to values.", file=path, remedy="see docs/reference/configuration.md."
        )
    return value


def validate(
    model: type[Section],
    value: Any,
    file: str | Path | None,
    prefix: str = "",
    remedies: Mapping[str, str] | None = None,
) -> Section:
    """``value`` as a ``model``; the first problem becomes a ConfigError naming its key.

    Args:
        model: the pydantic class.
        value: the mapping read from ``file``.
        file: named in the error.
        prefix: key under which ``value`` stands in the file, "" for the top.
        remedies: pydantic's type of error -> remedy, over ``REMEDIES``.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        # A misspelt key is both unknown and absent; the first says how to mend it.
        first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
        first = _branch_meant(first, problems)
        key = _key(first["loc"], value, prefix)
        remedy = _remedy(model, first, {**REMEDIES, **(remedies or {})})
        raise ConfigError(_problem(first), file=file, key=key or None, remedy=remedy) from None
    except RecursionError:
        raise ConfigError(
            "is nested too deeply.", file=file, key=prefix or None, remedy="flatten it."
        ) from None


def _branch_meant(first: Any, problems: Sequence[Any]) -> Any:
    """Of a value that may be of several types, the problem that lies deepest: it is of the type that was meant.

    Where a number or a mapping may stand, a wrong entry of a mapping is also "no number".
    """
    place = first["loc"][:-1]
    if not first["loc"] or not re.fullmatch(BRANCH, str(first["loc"][-1])):
        return first
    rivals = [problem for problem in problems if problem["loc"][: len(place)] == place]
    return max(rivals, key=lambda problem: len(problem["loc"]))


REMEDIES = {
    "missing": "add it.",
    "finite_number": "give a finite number.",
    "float_type": "write a bare number such as 48.08 or 1e-3, without quotes, comma or % sign.",
    "int_type": "write a bare whole number, without quotes or decimals.",
    "int_from_float": "write a whole number.",
    "bool_type": "write true or false, without quotes.",
    "string_type": "put the text in quotes.",
    "string_too_short": "give a non-empty text.",
    "string_too_long": "shorten it.",
    "list_type": "write a list: [first, second].",
    "tuple_type": "write a list: [first, second].",
    "dict_type": "write a mapping of keys to values.",
    "model_type": "write a mapping of keys to values.",
    "too_short": "give at least the smallest number of entries named.",
    "enum": "use one of the listed values.",
    "literal_error": "use one of the listed values.",
}
"""pydantic's type of error -> what to do about it."""


BRANCH = r"constrained-\w+|int|float|str|bool|(?:list|dict|function-\w+|constrained-\w+)\[.*\]"
"""How pydantic calls the branch of a union in a location."""


def _key(loc: tuple[int | str, ...], value: Any, prefix: str) -> str:
    """``claims[3] (mpo-4b-bcp).gap`` from pydantic's location; an entry with an id is named by it, too."""
    text = prefix
    here = value
    for part in loc:
        known = isinstance(here, Mapping) and part in here
        if part == "[key]" or (not known and re.fullmatch(BRANCH, str(part))):
            continue
        inside = (isinstance(here, Mapping) and part in here) or (
            isinstance(here, (list, tuple)) and isinstance(part, int) and part < len(here)
        )
        here = here[part] if inside else None
        if isinstance(part, int):
            text += f"[{part}]"
            if isinstance(here, Mapping) and "id" in here:
                text += f" ({_shown(here['id'])})"
        else:
            text += f".{_shown(part)}" if text else _shown(part)
    return text


def _shown(text: Any) -> str:
    """A key of the user's in an error: short and on one line."""
    return text if isinstance(text, str) and text.isprintable() and len(text) <= 80 else reprlib.repr(text)


def _problem(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key."
    if error["type"] == "missing":
        return "is required but absent."
    if error["type"] in ("model_type", "dict_type"):
        return f"must be a mapping of keys to values, got {reprlib.repr(error['input'])}."
    message = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    if isinstance(error["input"], (str, int, float, bool, list, type(None))):
        return f"{message}, got {reprlib.repr(error['input'])}."
    return f"{message}."


def _remedy(model: type[BaseModel], error: Any, remedies: Mapping[str, str]) -> str:
    if error["type"] == "float_type" and _number_in_quotes(error["input"]):
        return f"write it without quotes: {str(error['input']).strip()}."
    if error["type"] != "extra_forbidden":
        return remedies.get(error["type"], "correct the value.")
    fields = _fields_at(model, error["loc"][:-1])
    close = difflib.get_close_matches(str(error["loc"][-1]), fields, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known keys: {', '.join(sorted(fields))}." if fields else "remove it."


def _number_in_quotes(value: Any) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Keys known at a place of the model; a mapping's own keys (cell names and the like) are passed over."""
    current: Any = model
    for part in location:
        current = _unwrap(current)
        if _is_model(current):
            field = next((f for n, f in current.model_fields.items() if part in (n, f.alias)), None)
            current = None if field is None else field.annotation
        else:
            current = next((item for item in reversed(get_args(current)) if item is not Ellipsis), None)
    current = _unwrap(current)
    if not _is_model(current):
        return []
    return [field.alias or name for name, field in current.model_fields.items()]


def _unwrap(annotation: Any) -> Any:
    """The annotation without None and without marks."""
    if get_origin(annotation) is Annotated:
        return _unwrap(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _unwrap(next(item for item in get_args(annotation) if item is not types.NoneType))
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
