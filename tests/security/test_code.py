"""No way to run somebody else's code: read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("src", "benchmarks", "workflow", "docs")
    for path in (PROJECT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
RULES = [PROJECT / "Snakefile", *sorted((PROJECT / "workflow").rglob("*.smk"))]
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.save", "np.load",
    "numpy.load", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "pd.read_pickle", "pandas.read_pickle",
    "subprocess.getoutput", "subprocess.getstatusoutput", "tarfile.open", "shutil.unpack_archive",
}  # fmt: skip


def problems(text: str) -> Iterator[str]:
    """What a source text may not do, with its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                if name.split(".")[0] in MODULES:
                    yield f"line {node.lineno}: imports {name}"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "np.load" and ast.unparse(node).endswith(", allow_pickle=False)"):
                continue  # plain arrays only: anything pickled is refused
            if called in CALLS or called.endswith((".extractall", ".read_pickle", ".to_pickle")):
                yield f"line {node.lineno}: calls {called}"
            for keyword in node.keywords:
                on = not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
                if keyword.arg in ("trust_remote_code", "shell", "allow_pickle", "allow_dangerous") and on:
                    yield f"line {node.lineno}: {keyword.arg}={ast.unparse(keyword.value)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_file_runs_foreign_code(path: Path) -> None:
    assert list(problems(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(x)",
        "eval(x)",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=y)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "np.load(x, allow_pickle=True)",
        "np.load(x)",
        "np.load(x, allow_pickle=flag)",
        "archive.extractall(x)",
        "os.system(x)",
        "yaml.load(x, Loader=yaml.Loader)",
    ],
)
def test_the_scan_sees(text: str) -> None:
    assert list(problems(text))


def test_the_scan_is_of_the_whole_project() -> None:
    assert len(FILES) > 150
    assert len(RULES) > 8


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_quote_what_they_put_into_a_shell(path: Path) -> None:
    """Every field of a shell command is quoted (``:q``), a number, or made from checked names."""
    text = path.read_text(encoding="utf-8")
    for part in text.split("    shell:\n")[1:]:
        command = part.split("\n\n")[0]
        for field in command.split("{")[1:]:
            inner = field.split("}")[0]
            assert inner.endswith(":q") or inner in CHECKED, f"{path.name}: {{{inner}}} is not quoted"


CHECKED = {
    "wildcards.seed",  # digits by the wildcard's constraint
    "params.seeds",
    "params.partial",
    "params.critic",  # paths under results/, made of checked names and hashes
    "params.critics",
    "params.pack",
    "params.select",  # names of study and scale, and a number
    "params.gpus",
    "threads",
}
