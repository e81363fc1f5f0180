"""The invented study of benchmarks/synthetic_study.py, loaded by path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "synthetic_study.py"


def _load() -> ModuleType:
    if "synthetic_study" not in sys.modules:
        found = importlib.util.spec_from_file_location("synthetic_study", SOURCE)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules["synthetic_study"] = module
        found.loader.exec_module(module)
    return sys.modules["synthetic_study"]


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    return _load()
