"""Families by name: a validated configuration in, a family out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from turnscale.config.load import Plain, Strict, read_yaml, validate
from turnscale.envs.protocol import Family, Limits
from turnscale.envs.qa import QaFamily, QaParameters
from turnscale.envs.search import SearchFamily
from turnscale.envs.search_task import SearchParameters
from turnscale.envs.textworld_express import TextWorldFamily, TextWorldParameters
from turnscale.errors import ConfigError

MOST_TOKENS = 100_000_000


def _family_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", text):
        raise ValueError("a family's name has small letters, digits and '-', and begins with a letter")
    return text


class LimitsConfig(Strict):
    """Budgets of an episode: turns, tokens of one turn (its end token included), tokens of the whole row, seconds."""

    max_turns: int = Field(ge=1, le=100_000)
    max_turn_tokens: int = Field(ge=1, le=MOST_TOKENS)
    max_tokens: int = Field(ge=1, le=MOST_TOKENS)
    timeout_s: float | None = Field(None, gt=0, le=86_400)

    @model_serializer(mode="wrap")
    def _without_absent(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """No limit of time is no part of a family's identity."""
        return {name: value for name, value in serialise(self).items() if value is not None}

    def build(self) -> Limits:
        """The limits as the rollout reads them."""
        return Limits(self.max_turns, self.max_turn_tokens, self.max_tokens, self.timeout_s)


class FamilyConfig(Strict):
    """One family: its name in tables, its kind (a key of ``KINDS``), budgets and the kind's parameters."""

    name: Annotated[str, AfterValidator(_family_name)]
    kind: str
    limits: LimitsConfig
    parameters: dict[str, Plain] = Field(default_factory=dict)


KINDS: dict[str, tuple[type[BaseModel], Callable[[str, Limits, Any], Family]]] = {
    "search": (SearchParameters, SearchFamily),
    "qa": (QaParameters, QaFamily),
    "textworld": (TextWorldParameters, TextWorldFamily),
}


def load_family(config: Mapping[str, Any] | FamilyConfig, file: str | Path | None = None) -> Family:
    """Build a family; raises ConfigError naming file and key for anything unknown or out of range."""
    if not isinstance(config, FamilyConfig):
        config = validate(FamilyConfig, config, file)
    parameters = checked_parameters(config, file)
    return KINDS[config.kind][1](config.name, config.limits.build(), parameters)


def checked_parameters(config: FamilyConfig, file: str | Path | None = None) -> BaseModel:
    """The parameters as the family's kind reads them.

    Raises:
        ConfigError: an unknown kind, or parameters that do not fit it.
    """
    if config.kind not in KINDS:
        raise ConfigError(
            f"unknown kind of family {config.kind!r}.",
            file=file,
            key="kind",
            remedy=f"use one of {', '.join(KINDS)}.",
        )
    return validate(KINDS[config.kind][0], config.parameters, file, "parameters")


def read_family_config(path: str | Path) -> FamilyConfig:
    """Read ``configs/families/*.yaml``; raises ConfigError for anything wrong in it, its parameters included."""
    path = Path(path)
    config = validate(FamilyConfig, read_yaml(path), path)
    checked_parameters(config, path)
    return config


def read_family(path: str | Path) -> Family:
    """Read a family's YAML file and build the family."""
    return load_family(read_family_config(path), path)
