"""Families by name: a validated configuration in, a family out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnscale.config.load import read_yaml
from turnscale.envs.protocol import Family, Limits
from turnscale.envs.qa import QaFamily, QaParameters
from turnscale.envs.search import SearchFamily
from turnscale.envs.search_task import SearchParameters
from turnscale.envs.textworld_express import TextWorldFamily, TextWorldParameters
from turnscale.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class LimitsConfig(BaseModel):
    """Budgets of an episode: turns, tokens of one turn (its end token included), tokens of the whole row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(ge=1)
    max_turn_tokens: int = Field(ge=1)
    max_tokens: int = Field(ge=1)

    def build(self) -> Limits:
        """The limits as the rollout reads them."""
        return Limits(self.max_turns, self.max_turn_tokens, self.max_tokens)


class FamilyConfig(BaseModel):
    """One family: its name in tables, its kind (a key of ``KINDS``), budgets and the kind's parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    kind: str
    limits: LimitsConfig
    parameters: dict[str, Any] = Field(default_factory=dict)


KINDS: dict[str, tuple[type[BaseModel], Callable[[str, Limits, Any], Family]]] = {
    "search": (SearchParameters, SearchFamily),
    "qa": (QaParameters, QaFamily),
    "textworld": (TextWorldParameters, TextWorldFamily),
}


def load_family(config: Mapping[str, Any] | FamilyConfig, file: str | Path | None = None) -> Family:
    """Build a family; raises ConfigError naming file and key for anything unknown or out of range."""
    if not isinstance(config, FamilyConfig):
        config = _validate(FamilyConfig, config, file)
    if config.kind not in KINDS:
        raise ConfigError(
            f"unknown kind of family {config.kind!r}",
            file=file,
            key="kind",
            remedy=f"use one of {', '.join(KINDS)}.",
        )
    schema, build = KINDS[config.kind]
    parameters = _validate(schema, config.parameters, file, "parameters")
    return build(config.name, config.limits.build(), parameters)


def read_family_config(path: str | Path) -> FamilyConfig:
    """Read ``configs/families/*.yaml``."""
    path = Path(path)
    data = read_yaml(path)
    return _validate(FamilyConfig, data, path)


def read_family(path: str | Path) -> Family:
    """Read a family's YAML file and build the family."""
    return load_family(read_family_config(path), path)


def _validate(model: type[Model], data: Any, file: str | Path | None, prefix: str = "") -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(part for part in (prefix, *map(str, first["loc"])) if part)
        known = ", ".join(cast(type[BaseModel], model).model_fields)
        remedy = (
            f"the known keys are {known}." if first["type"] == "extra_forbidden" else "correct the value."
        )
        raise ConfigError(first["msg"], file=file, key=key or None, remedy=remedy) from error
