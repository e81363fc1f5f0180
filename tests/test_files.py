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


def test_a_file_that_is_replaced_keeps_its_permissions_and_a_read_only_one_its_content(
    tmp_path: Path,
) -> None:
    path = tmp_path / "scale.yaml"
    write_text("before", path)
    path.chmod(0o640)
    write_text("after", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o444)
    with pytest.raises(StorageError, match=r"scale\.yaml: is there already and read-only.*chmod u\+w"):
        write_text("lost", path)
    assert path.read_text(encoding="utf-8") == "after"
    assert list(tmp_path.iterdir()) == [path]
