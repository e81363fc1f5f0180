"""Reading YAML into validated models, with errors that name the file, the key and the remedy."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from turnscale.errors import ConfigError


class Strict(BaseModel):
    """Base of every configuration section: unknown keys are errors and values do not change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Section = TypeVar("Section", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, is not UTF-8, is not YAML, writes a key twice or does not hold a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = sorted(p.stem for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        known = f"choose one of: {', '.join(near)}." if near else "check the path."
        raise ConfigError("there is no such file.", file=path, remedy=known) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text.", file=path, remedy="save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror}).", file=path, remedy="check the path."
        ) from None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _refuse_repeated_keys(node, path)
        value = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f" at line {line + 1}" if line is not None else ""
        detail = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(
            f"is not valid YAML{where}: {detail}.", file=path, remedy="correct the syntax."
        ) from None
    except RecursionError:
        raise ConfigError("is nested too deeply.", file=path, remedy="flatten it.") from None
    if not isinstance(value, dict):
        raise ConfigError(
            "must hold a mapping of keys to values.", file=path, remedy="see docs/reference/configuration.md."
        )
    return {str(key): item for key, item in value.items()}


def _refuse_repeated_keys(root: yaml.Node, path: Path) -> None:
    """Raise ConfigError when a mapping anywhere in a YAML document writes a key twice; YAML would keep the last."""
    stack = [root]
    visited: set[int] = set()  # an alias is the same node again, and may even contain itself
    while stack:
        node = stack.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise ConfigError(
                            f"the key {key.value!r} is written twice.",
                            file=path,
                            key=f"line {key.start_mark.line + 1}",
                            remedy="keep one of the two.",
                        )
                    seen.add(key.value)
                stack.append(value)


def validate(model: type[Section], value: Any, file: str | Path, prefix: str = "") -> Section:
    """``value`` as a ``model``; the first problem becomes a ConfigError naming its key.

    Args:
        model: the pydantic class.
        value: the mapping read from ``file``.
        file: named in the error.
        prefix: key under which ``value`` stands in the file, "" for the top.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors()
        # A misspelt key is both unknown and absent; the first says how to mend it.
        first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
        key = ".".join(str(part) for part in (*([prefix] if prefix else []), *first["loc"]))
        raise ConfigError(_problem(first), file=file, key=key or None, remedy=_remedy(model, first)) from None


def _problem(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key."
    if error["type"] == "missing":
        return "is required but absent."
    message = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    if isinstance(error["input"], (str, int, float, bool)):
        return f"{message}, got {error['input']!r}."
    return f"{message}."


def _remedy(model: type[BaseModel], error: Any) -> str:
    if error["type"] == "missing":
        return "add it."
    if error["type"] != "extra_forbidden":
        return "correct the value."
    fields = _fields_at(model, error["loc"][:-1])
    close = difflib.get_close_matches(str(error["loc"][-1]), fields, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known keys: {', '.join(sorted(fields))}." if fields else "remove it."


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Keys known at a place of the model; a mapping's own keys (cell names and the like) are passed over."""
    current: Any = model
    free = False
    for part in location:
        if free:
            free = False
            continue
        field = current.model_fields.get(part) if hasattr(current, "model_fields") else None
        if field is None:
            return []
        current = field.annotation
        free = getattr(current, "__origin__", None) is dict
        for option in getattr(current, "__args__", ()):
            if isinstance(option, type) and issubclass(option, BaseModel):
                current = option
    return list(current.model_fields) if hasattr(current, "model_fields") else []
