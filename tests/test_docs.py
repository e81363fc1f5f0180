"""The documentation is current, its links lead somewhere, its commands exist and its examples work."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("README.md")])
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that writes the generated pages, with its two modules."""
    monkeypatch.syspath_prepend(str(DOCS))
    import generate_reference

    return generate_reference


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [text for name, text in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def shell(page: Path) -> str:
    """What a page says in code without a language: blocks and spans, comments left out."""
    spans = re.findall(r"`([^`\n]+)`", prose(page))
    return re.sub(r"\s#.*", "", "\n".join([*blocks(page, ""), *spans]))


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may name."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# Generated pages


def test_generated_pages_are_current(generators: Any) -> None:
    assert [path.name for path in generators.stale()] == [], "run python docs/generate_reference.py"


def test_an_outdated_page_is_found(generators: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "configuration.md"
    monkeypatch.setattr(generators, "PAGES", {page: lambda: "new\n"})
    page.write_text("old\n")
    assert generators.main(["--check"]) == 1
    assert generators.main([]) == 0 and page.read_text() == "new\n"
    assert generators.main(["--check"]) == 0


def test_every_meaning_is_used_once(generators: Any) -> None:
    from generators.configuration import FILES, MEANINGS, _documented, _parts

    models = {model for _, _, top in FILES for model in (top, *_parts(top))}
    silent = {
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if field.description is None and name not in _documented(model)
    }
    assert silent == set(MEANINGS)


def test_types_are_put_into_words(generators: Any) -> None:
    from generators.configuration import type_name

    from turnscale.config.schema import Name, Positive, Share

    assert type_name(dict[Name, list[Positive]]) == "name → list of whole number, > 0, ≤ 1000000000"
    assert type_name(Share | None) == "number, ≥ 0, ≤ 1 or null"
    with pytest.raises(KeyError):
        type_name(complex)


# Completeness


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(d for extra in project["optional-dependencies"].values() for d in extra),
    ]
    names = {re.split(r"[<>=~\[; ]", requirement)[0].lower() for requirement in asked}
    rows = re.findall(r"^\|(.+)\|$", (DOCS / "reference" / "dependencies.md").read_text(), re.MULTILINE)
    cells = [[cell.strip().lower() for cell in row.split("|")] for row in rows]
    explained = {row[-2] for row in cells if row[-1] not in ("why", "---")}
    assert explained == names


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(d for extra in extras.values() for d in extra)]
    declared = {re.split(r"[<>=~\[; ]", requirement)[0].lower().replace("-", "_") for requirement in asked}
    declared |= {"yaml", "turnscale"}  # PyYAML's module
    used = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            used |= {name.split(".")[0] for name in names}
    assert used - declared - sys.stdlib_module_names == set()


def test_every_statistic_is_explained() -> None:
    from turnscale import stats

    text = (DOCS / "reference" / "estimators.md").read_text()
    functions = [name for name in stats.__all__ if inspect.isfunction(getattr(stats, name)) or name.islower()]
    assert [name for name in functions if not re.search(rf"\b{name}\b", text)] == []


def test_every_page_can_be_reached() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"] if (ROOT / "README.md").exists() else [DOCS / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        waiting += [target for target, _ in links(page) if target.suffix == ".md" and target.exists()]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


# Links and commands


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor) of every relative link of a page."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield ((page.parent / file).resolve() if file else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|[\s;&])make ([a-z][a-z-]*)", shell(page), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_turnscale_commands_and_options_exist(page: Path, generators: Any) -> None:
    from generators.commands import commands, options

    known = {path.removeprefix("turnscale "): function for path, function in commands()}
    groups = {path.split()[0] for path in known if " " in path}
    wrong = []
    for line in re.findall(r"(?:^|[\s;&])turnscale ([a-z][^\n;&|]*)", shell(page), re.MULTILINE):
        words = line.split()
        name = " ".join(words[:2]) if words[0] in groups else words[0]
        if name in groups:
            continue
        if name not in known:
            wrong.append(line)
            continue
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        wrong += [f"{name}: {option}" for option in given - options(known[name]) - {"--help"}]
    assert wrong == []


# Examples


def test_the_example_study_is_valid() -> None:
    from turnscale.config.load import validate
    from turnscale.config.schema import Study
    from turnscale.methods import load_method

    (text,) = blocks(DOCS / "how-to" / "add-a-study.md", "yaml")
    study = validate(Study, yaml.safe_load(text), "add-a-study.md")
    for cell in study.cells.values():
        load_method(cell.method, cell.set, directory=ROOT / "configs" / "methods")


def test_the_example_method_keeps_its_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from turnscale import axes
    from turnscale.gates.identities import Edge, check_edge
    from turnscale.methods import load_method

    torch.set_num_threads(1)
    page = DOCS / "how-to" / "add-a-method.md"
    function, choice, edge = blocks(page, "python")
    rows = blocks(page, "yaml")
    folder = shutil.copytree(ROOT / "configs" / "methods", tmp_path / "methods")
    for name, text in zip(("dr-grpo", "grpo-late"), rows, strict=False):
        (folder / f"{name}.yaml").write_text(text)
    assert load_method("dr-grpo", directory=folder).aggregation["divisor"] == 98

    module = types.ModuleType("turnscale.credit.late")
    exec(function, module.__dict__)
    monkeypatch.setitem(sys.modules, "turnscale.credit.late", module)
    found: dict[str, Any] = {"Edge": Edge}
    exec(choice, vars(axes).copy() | found, found)
    exec(edge, found)
    monkeypatch.setitem(axes.CREDIT, "late", found["entry"]["late"])
    assert check_edge(found["edge"], range(2), directory=folder).passed
    broken = Edge("late", "grpo-late", "grpo", tolerance=0.0)
    assert not check_edge(broken, range(2), directory=folder).passed


def test_yaml_of_the_pages_is_yaml() -> None:
    for page in PAGES:
        for text in blocks(page, "yaml"):
            assert isinstance(yaml.safe_load(text), dict), page


def test_models_named_in_the_reference_are_strict(generators: Any) -> None:
    from generators.configuration import FILES, _parts

    models: set[type[BaseModel]] = {model for _, _, top in FILES for model in (top, *_parts(top))}
    assert [model for model in models if model.model_config.get("extra") != "forbid"] == []
