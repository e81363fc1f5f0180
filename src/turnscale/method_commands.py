"""``turnscale methods``: what methods there are, what one says, how two differ, and the index for the docs."""

from __future__ import annotations

import math
import reprlib
from pathlib import Path
from typing import Annotated

import typer

from turnscale.axes import AXES, TERMS
from turnscale.config.parse import ParseError, parse_yaml
from turnscale.conventions import (
    Difference,
    advantages,
    compare,
    example_batch,
    per_trajectory,
    preset_names,
    side,
)
from turnscale.errors import ConfigError
from turnscale.files import write_text
from turnscale.methods import Method, list_methods, load_method

commands = typer.Typer(help="Methods: rows of choices under configs/methods.", no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option("--directory", help="Where the rows are; configs/methods.")]


MOST_REWARD = 1e6
"""Largest reward of an example; squares and sums of larger ones say nothing."""


def register(app: typer.Typer) -> None:
    """Add the ``methods`` commands to an application."""
    app.add_typer(commands, name="methods")


def parse_overrides(pairs: list[str]) -> dict[str, object]:
    """``key=value`` pairs as overrides, values read as YAML.

    Raises:
        ConfigError: a pair without ``=``.
    """
    out: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(
                f"expected key=value, got {pair!r}.", key="--set", remedy="write --set credit.beta=0.5."
            )
        try:
            out[key] = parse_yaml(value)
        except ParseError as error:
            raise ConfigError(error.problem, key=f"--set {key}", remedy=error.remedy) from None
    return out


def parse_groups(text: str) -> list[list[float]]:
    """``0,1;1`` as groups of rewards.

    Raises:
        ConfigError: something that is not a number, or too large to compute with.
    """
    try:
        groups = [[float(reward) for reward in group.split(",")] for group in text.split(";")]
    except ValueError:
        groups = [[math.nan]]
    if not all(abs(reward) <= MOST_REWARD for group in groups for reward in group):
        raise ConfigError(
            f"cannot read rewards from {reprlib.repr(text)}.",
            key="--rewards",
            remedy=f"write groups like '0,1;1', with numbers up to {MOST_REWARD:g}.",
        )
    return groups


@commands.command("list")
def list_(directory: Directory = None) -> None:
    """One line a method: name, credit, ratio, title."""
    for name in list_methods(directory):
        method = load_method(name, directory=directory)
        credit = method.credit_choice["name"] if method.train else "not trained"
        ratio = method.ratio["name"] if method.train else "-"
        typer.echo(f"{name:16} {credit:20} {ratio:9} {method.title}")
    typer.echo(f"presets for diff: {preset_names()}")


@commands.command()
def show(
    name: str,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override, key=value.")] = None,
    directory: Directory = None,
) -> None:
    """The resolved method: every value with its source."""
    method = load_method(name, parse_overrides(overrides or []), directory=directory)
    typer.echo(describe(method), nl=False)


@commands.command()
def diff(
    a: str,
    b: str,
    rewards: Annotated[
        str | None, typer.Option(help="Example rewards, groups separated by ';', e.g. '0,1;1'.")
    ] = None,
    directory: Directory = None,
) -> None:
    """In which conventions two methods or presets differ, and which explains a difference of advantages."""
    left, right = side(a, directory), side(b, directory)
    batch = example_batch(parse_groups(rewards)) if rewards else example_batch()
    differences, total = compare(left, right, batch)
    if not differences:
        typer.echo(f"{left.name} and {right.name} agree in every convention known of both.")
    width = max((len(d.key) for d in differences), default=0)
    for d in differences:
        effect = "" if d.effect is None else f"   alone moves the advantage by {d.effect:.4g}"
        typer.echo(f"{d.key:{width}}  {d.a} | {d.b}{effect}")
    for which in (left, right):
        means = per_trajectory(advantages(which.method, batch), batch)
        typer.echo(f"{which.name}: advantage of each trajectory {' '.join(f'{x:+.4f}' for x in means)}")
    typer.echo(f"greatest difference of advantages on the example groups: {total:.4g}")
    movers = [d for d in differences if d.effect]
    if movers:
        typer.echo(f"explained first by {movers[0].key}: {movers[0].a} against {movers[0].b}")
    elif differences:
        typer.echo(f"the advantages agree; the difference is in {_places(differences)}")


def _places(differences: list[Difference]) -> str:
    """The axes and sections in which methods differ, in words: "the ratio and the aggregation"."""
    names = list(dict.fromkeys(f"the {difference.key.partition('.')[0]}" for difference in differences))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@commands.command()
def index(
    write: Annotated[Path | None, typer.Option("--write", help="Write to this file.")] = None,
    directory: Directory = None,
) -> None:
    """The index of methods as Markdown (docs/methods.md)."""
    text = method_index(directory)
    if write is None:
        typer.echo(text, nl=False)
    else:
        write_text(text, write)


def values_with_sources(method: Method) -> list[tuple[str, str, str]]:
    """(dotted key, value, source or "") of every choice and parameter."""
    rows = []
    for axis in AXES:
        section = method.section(axis)
        rows.append((axis, section["name"], ""))
        rows += [(f"{axis}.{key}", str(value), "") for key, value in section.items() if key != "name"]
    for term, params in method.terms.items():
        rows += [(f"terms.{term}.{key}", str(value), "") for key, value in params.items()]
    for name in ("sampling", "critic"):
        for key, value in getattr(method, name).model_dump().items():
            parts = value.items() if isinstance(value, dict) else ()
            rows += [(f"{name}.{key}.{part}", str(inner), "") for part, inner in parts]
            if not parts and not (key == "twins" and value is None):
                rows.append((f"{name}.{key}", str(value), ""))
    return [(key, value, method.sources.get(key, "")) for key, value, _ in rows]


def describe(method: Method) -> str:
    """The method in words, one value a line."""
    arxiv = f"arXiv {method.paper.arxiv}, " if method.paper.arxiv else ""
    lines = [
        f"{method.name}: {method.title}",
        method.summary,
        f"source: {arxiv}read through {method.paper.read_via}; {method.paper.status}",
    ]
    if not method.train:
        lines.append(f"not trained; evaluated in the {method.sampling.evaluation_context} context")
    else:
        lines.append(f"needs: {', '.join(sorted(method.needs)) or 'nothing beyond rollouts'}")
        for key, value, source in values_with_sources(method):
            lines.append(f"  {key:34} {value:12} {source}".rstrip())
        lines += [f"  inert: {key}: {why}" for key, why in method.inert.items()]
    if method.identities:
        lines.append(f"identity gates: {', '.join(method.identities)}")
    return "\n".join(lines) + "\n"


def method_index(directory: Path | None = None) -> str:
    """The Markdown index, generated from the rows and the registry."""
    out = [
        "# Methods",
        "",
        "Generated by `turnscale methods index --write docs/methods.md`; edit `configs/methods/` instead.",
        "",
        "| method | title | credit | ratio | clip | aggregation | normalisation | heads | status |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    methods = [load_method(name, directory=directory) for name in list_methods(directory)]
    for m in methods:
        cells = [f"[{m.name}](#{m.name})", m.title]
        if m.train:
            cells += [
                m.section(a)["name"] for a in ("credit", "ratio", "clip", "aggregation", "normalisation")
            ]
            cells.append(str(m.critic.heads))
        else:
            cells += ["not trained", "", "", "", "", ""]
        out.append("| " + " | ".join([*cells, m.paper.status]) + " |")
    for m in methods:
        arxiv = f"arXiv {m.paper.arxiv}, " if m.paper.arxiv else ""
        out += ["", f"## {m.name}", "", m.summary, ""]
        out.append(f"Source: {arxiv}read through {m.paper.read_via}. Status: {m.paper.status}.")
        if m.sources:
            out += ["", "| value | | source |", "|---|---|---|"]
            known = {key: value for key, value, _ in values_with_sources(m)}
            out += [f"| `{key}` | {known[key]} | {source} |" for key, source in sorted(m.sources.items())]
        for key, why in m.inert.items():
            out += ["", f"`{key}` has no effect: {why}."]
        if m.identities:
            out += ["", f"Identity gates: {', '.join(m.identities)}."]
    out += ["", "# Choices", ""]
    for axis, entries in [*AXES.items(), ("terms", TERMS)]:
        out += [f"## Axis: {axis}", "", "| choice | computes | parameters | needs |", "|---|---|---|---|"]
        for name, choice in entries.items():
            params = ", ".join(f"`{p}`" for p in choice.params)
            out.append(f"| `{name}` | {choice.about} | {params} | {', '.join(choice.needs)} |")
        out.append("")
    return "\n".join(out).rstrip() + "\n"
