"""Settings of the workflow given on Snakemake's command line."""

from __future__ import annotations

from typing import Any

import pytest

from turnscale.errors import ConfigError
from turnscale.workflow import check_options


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
