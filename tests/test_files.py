"""Files are written in the place of files only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from turnscale.errors import StorageError
from turnscale.files import write_text


def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match="no ordinary file"):
        write_text("text", pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
