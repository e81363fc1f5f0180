"""Settings of the workflow given on Snakemake's command line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.documents import change
from turnscale.errors import ConfigError
from turnscale.study import Plan, resolve
from turnscale.workflow import Products, check_options, pack_size, unused

PROJECT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("given", "partial"), [(None, False), (False, False), ("false", False), (True, True)]
)
def test_partial_is_read_as_it_is_written(given: Any, partial: bool) -> None:
    config = {"study": "mpo", "scale": "smoke"} | ({} if given is None else {"partial": given})
    assert check_options(config) is partial


@pytest.mark.parametrize("config", [{"shares": "1/2"}, {"seed": 3}, {"partial": "perhaps"}, {"partial": 2}])
def test_what_nothing_reads_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Remedy"):
        check_options({"study": "mpo", **config})


@pytest.mark.parametrize("name", ["pack", "share"])
def test_what_a_tabular_study_has_no_use_for_is_refused(name: str) -> None:
    assert not check_options({"study": "mpo", name: "1/2"})
    with pytest.raises(ConfigError, match=f"{name}: is of no use to a tabular study"):
        check_options({"study": "grouping", name: "1/2"}, tabular=True)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("mpo", "smoke", root=PROJECT)


@pytest.mark.parametrize("asked", [0, -1, 10_001, True, "2", 1.5])
def test_a_pack_is_a_number_of_seeds(plan: Plan, asked: Any) -> None:
    with pytest.raises(ConfigError, match=r"pack: must be a whole number from 1 to 10000.*Remedy"):
        pack_size(plan, asked)


def test_a_share_is_one_machine_out_of_some(plan: Plan) -> None:
    products = Products(plan)
    first, second = products.share("1/2"), products.share("02/02")
    assert sorted(first + second) == sorted(products.share())
    assert first and second and not set(first) & set(second)
    for asked in ("0/2", "3/2", "1/0", "2", "1/2/3", "a/b", 0.5):
        with pytest.raises(ConfigError, match=r"share: .*Remedy: write 2/3"):
            products.share(asked)


def test_a_setting_without_effect_is_told(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "configs", tmp_path / "configs")
    change(tmp_path / "configs/scales/smoke.yaml", lambda scale: scale["runtime"].update(stack=True))
    stacked = resolve("mpo", "smoke", root=tmp_path)
    assert any("runtime.stack has no effect" in warning for warning in unused(stacked, 1))
    assert unused(stacked, 2) == []
