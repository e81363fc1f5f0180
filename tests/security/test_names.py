"""Names and paths of the user's in shells, paths and markup: refused with words, or quoted."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.builders import LEDGER
from tests.documents import change
from turnscale.audit.document import Column, Document, Section, to_latex, to_markdown
from turnscale.config.load import config_path, is_name
from turnscale.config.schema import Cell
from turnscale.errors import ConfigError
from turnscale.methods import load_method
from turnscale.render.text import latex
from turnscale.study import resolve

PROJECT = Path(__file__).parents[2]
HOSTILE = [
    "$(touch PWNED)", "`touch PWNED`", "; touch PWNED", "x && touch PWNED", "x|touch PWNED", "x\ntouch PWNED",
    "> PWNED", "'; touch PWNED; '", '"; touch PWNED; "', "../../PWNED", "/tmp/PWNED", "a/../b", "--help", "-rf",
    "{x}", "{wildcards}", "*", "~", "a b", "", ".", "..", ".hidden", "x\x00y", "x\u202ey", "e\u0301", "x" * 65,
    "a\\b", "<b>", "%s",
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("configs", "workflow"):
        shutil.copytree(PROJECT / folder, tmp_path / folder)
    shutil.copy(PROJECT / "Snakefile", tmp_path / "Snakefile")
    return tmp_path


PLACES = {
    "cell": lambda s, n: (s["cells"].update({n: {"method": "mpo"}}), s["groups"]["smoke"].append(n)),
    "method": lambda s, n: s["cells"]["mpo"].update(method=n),
    "group": lambda s, n: s["groups"].update({n: ["mpo"]}),
    "family": lambda s, n: s.update(families=[n]),
    "model": lambda s, n: s.update(models=[n]),
    "table": lambda s, n: s["tables"].update({n: s["tables"]["mpo_main"]}),
    "figure": lambda s, n: s["figures"].update({n: s["figures"]["mpo_gains"]}),
    "claims": lambda s, n: s.update(claims=n),
    "published": lambda s, n: s["tables"]["mpo_main"]["published"].update(file=n),
    "study": lambda s, n: s.update(study=n),
}


@pytest.mark.parametrize("place", PLACES)
def test_hostile_names_in_a_study_are_refused(root: Path, place: str) -> None:
    path = root / "configs/studies/mpo.yaml"
    good = path.read_text(encoding="utf-8")
    for name in HOSTILE:
        change(path, lambda s, name=name: PLACES[place](s, name))
        with pytest.raises(ConfigError) as caught:
            resolve("mpo", "smoke", root=root)
        assert caught.value.file and caught.value.file.endswith("mpo.yaml")
        assert caught.value.remedy
        path.write_text(good, encoding="utf-8")
    assert resolve("mpo", "smoke", root=root).cells


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_files_are_refused_before_any_is_opened(name: str) -> None:
    assert not is_name(name)
    for folder in ("studies", "scales", "models", "families"):
        with pytest.raises(ConfigError, match="a name has"):
            config_path(folder, name)
    with pytest.raises(ConfigError):
        resolve(name, "smoke", root=PROJECT)
    with pytest.raises(ConfigError):
        resolve("mpo", name, root=PROJECT)
    if not name.endswith((".yaml", ".yml")):
        with pytest.raises(ConfigError):
            load_method(name, directory=PROJECT / "configs/methods")


def test_a_row_cannot_extend_a_file_elsewhere(root: Path) -> None:
    path = root / "configs/methods/odd.yaml"
    for name in ("../../outside", "/etc/passwd", "a/b", 3, ["mpo"]):
        path.write_text(yaml.safe_dump({"extends": name}), encoding="utf-8")
        with pytest.raises(ConfigError, match="extends"):
            load_method("odd", directory=path.parent)


@given(st.text(max_size=70))
def test_what_is_a_name_needs_no_quotes_anywhere(name: str) -> None:
    if is_name(name):
        import re
        import shlex

        assert shlex.quote(name) == name
        assert Path(name).name == name and name not in (".", "..")
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name)
        assert latex(name).replace("\\_", "_").replace("{}", "").replace("-\u2060", "-").isprintable()


def snakemake(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        ["snakemake", "-n", "-p", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=300,
    )


def test_snakemake_refuses_hostile_names_and_plans_odd_ones(root: Path) -> None:
    """Through the real Snakefile: a hostile study, a hostile cell, and a cell with every character allowed."""
    done = snakemake(root, "--config", "study=$(touch PWNED)", "scale=smoke")
    assert done.returncode != 0
    assert "a name has" in done.stderr + done.stdout
    path = root / "configs/studies/mpo.yaml"
    good = path.read_text(encoding="utf-8")
    change(path, lambda s: PLACES["cell"](s, "x; touch PWNED"))
    done = snakemake(root, "--config", "study=mpo", "scale=smoke")
    assert done.returncode != 0
    assert "touch PWNED" in done.stderr + done.stdout
    path.write_text(good, encoding="utf-8")
    change(path, lambda s: PLACES["cell"](s, "A.b_c+d-0"))
    done = snakemake(root, "--config", "study=mpo", "scale=smoke")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "--cell A.b_c+d-0 " in done.stdout + done.stderr
    assert not list(root.rglob("*PWNED*"))


def test_a_path_with_blanks_reaches_a_real_shell_as_one_word(root: Path) -> None:
    ledger = root / "configs/claims/two words.yaml"
    shutil.copy(root / "configs/claims/mpo.yaml", ledger)
    change(root / "configs/studies/mpo.yaml", lambda s: s.update(claims="configs/claims/two words.yaml"))
    rule = root / "Snakefile.one"
    rule.write_text(
        'rule one:\n    input:\n        "configs/claims/two words.yaml",\n    output:\n        "out.txt",\n'
        '    shell:\n        "ls {input:q} > {output:q}"\n',
        encoding="utf-8",
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = ["snakemake", "-s", rule.name, "--cores", "1", "--quiet", "all"]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (root / "out.txt").read_text(encoding="utf-8").strip() == "configs/claims/two words.yaml"


TEXTS = [
    "a|b", "a & b", "100 %", "$x$", "\\input{/etc/passwd}", "\\write18{id}", "<script>alert(1)</script>", "<!-- -->",
    "[x](javascript:alert(1))", "*b* _i_ `c`", "a~b^c#d", "{x}", "--- ,, ''", "=cmd|' /C calc'!A0", '"q", r',
    "ümlaut λ",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_the_users_cannot_become_markup(text: str) -> None:
    section = Section(text, (Column(text), Column("n", number=True)), ((text, "1"),), (text,))
    report = Document(text, (text,), (section,))
    tex, md = to_latex(report), to_markdown(report)
    for command in ("\\input{", "\\write", "\\immediate"):
        assert command not in tex
    assert latex(text) in tex
    assert "<script" not in md and "<!--" not in md
    assert "](javascript" not in md.replace("\\](", "")
    row = next(line for line in md.splitlines() if line.startswith("| ") and line.endswith("| 1 |"))
    assert row.replace("\\|", "").count("|") == 3, "one cell stays one cell"
    for char in "&#%_":
        assert latex(text).count(char) == latex(text).count(f"\\{char}"), "every special character is escaped"


@pytest.mark.parametrize("text", ["$x$", "$\\frac{", "\\undefined $", "a_b^c", "two $ and $ three"])
def test_labels_in_figures_are_not_mathematics(tmp_path: Path, text: str) -> None:
    """A broken formula would raise, a good one would vanish into italics."""
    from turnscale.audit.forest import from_ledger
    from turnscale.audit.forest_drawing import save
    from turnscale.audit.ledger import load_ledger
    from turnscale.audit.ledger_report import audit_ledger
    from turnscale.render.style import RC

    value = yaml.safe_load(LEDGER)
    value["arms"][0] = value["claims"][0]["arm_a"] = value["title"] = text
    value["benchmarks"]["bench"]["name"] = text
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    forest = from_ledger(audit_ledger(load_ledger(path), []))
    assert any(text in row.label for row in forest.rows)
    assert len(save(forest, tmp_path, "plot")) == 2
    assert RC["text.parse_math"] is False


def test_a_cell_of_a_csv_file_stays_a_cell() -> None:
    import pandas as pd

    for text in TEXTS:
        out = io.StringIO()
        pd.DataFrame({"label": [text], "n": [1]}).to_csv(out, index=False)
        assert list(csv.reader(io.StringIO(out.getvalue())))[1] == [text, "1"]


@pytest.mark.parametrize("label", ["a\nb", "a\tb", "\x1b[31m", "", " ", "x\u202ey"])
def test_labels_are_one_printable_line(label: str) -> None:
    from turnscale.config.load import validate

    with pytest.raises(ConfigError, match="one line"):
        validate(Cell, {"method": "mpo", "label": label}, "study.yaml")
    assert validate(Cell, {"method": "mpo", "label": "a|b $x$"}, "study.yaml").label == "a|b $x$"
