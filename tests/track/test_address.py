"""Addresses at which no tracking store can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnscale.errors import TrackingError
from turnscale.track.address import check_address


def test_a_database_in_no_folder_is_refused_and_no_folder_made(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="folder does not exist"):
        check_address(f"sqlite:///{tmp_path}/no/such/x.db")
    assert list(tmp_path.iterdir()) == []
