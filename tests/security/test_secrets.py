"""Passwords and tokens are never printed, logged or stored, and a wrong address is refused within seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnscale.errors import TrackingError, TurnscaleError
from turnscale.masking import masked
from turnscale.study import resolve
from turnscale.track.address import check_address
from turnscale.track.run import open_run
from turnscale.track.store import init_tracking

PROJECT = Path(__file__).parents[2]
SECRET = "s3cr3t-Passw0rd"


def turnscale(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from turnscale.cli import main; main()", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "COLUMNS": "120", "TERM": "dumb", **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{SECRET}@db.example:5432/mlflow",
        f"cannot reach 'http://user:{SECRET}@127.0.0.1:1/api' (refused)",
        f"postgresql+psycopg2://user:{SECRET}%40x/y@db/mlflow?sslmode=require",
        f"https://host/path?token={SECRET}&x=1",
        f"password={SECRET} host=db",
        f"Token: {SECRET}",
        f"mysql://{SECRET}@h/d, then mysql://a:{SECRET}@h/d",
    ],
)
def test_masking(text: str) -> None:
    assert SECRET not in masked(text)
    assert "***" in masked(text)
    assert SECRET not in str(TurnscaleError(text, file=text, key=text, remedy=text))


def test_masking_leaves_other_text_alone() -> None:
    for text in (
        "sqlite:///mlflow/mlflow.db",
        "see https://example.org/x",
        "tokens: 3",
        "a@b",
        "steps: 4, lr: 1e-3",
    ):
        assert masked(text) == text


def test_secrets_of_the_environment_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:Other%2BPass@h")
    assert (
        masked(f"the server said {SECRET} and Other+Pass and Other%2BPass")
        == "the server said *** and *** and ***"
    )


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/mlflow",
        f"http://user:{SECRET}@127.0.0.1:1",
        f"https://user:{SECRET}@127.0.0.1:1/",
        f"ftp://user:{SECRET}@127.0.0.1/",
        f"http://user:{SECRET}@[::1",
        "file:///tmp/mlruns",
        "mlruns",
        "sqlite:////dev",
    ],
)
def test_a_wrong_address_is_one_short_line_without_its_password(tmp_path: Path, uri: str) -> None:
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    start = time.monotonic()
    with pytest.raises(TrackingError) as caught:
        check_address(uri, pauses=(0.1,))
    assert time.monotonic() - start < 10
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.remedy


def test_a_closed_port_through_the_command_line(tmp_path: Path) -> None:
    """The whole way: within seconds, one line, no password on any stream and none in any file."""
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    uri = f"http://user:{SECRET}@127.0.0.1:1"
    start = time.monotonic()
    done = turnscale("runs", "list", "--scale", "smoke", cwd=tmp_path, MLFLOW_TRACKING_URI=uri)
    assert time.monotonic() - start < 60, "the command itself tries for 7 s"
    assert done.returncode == 2
    assert "nothing answers at 127.0.0.1, port 1" in done.stderr
    assert done.stderr.count("\n") == 1
    done = turnscale(
        "import", "mlflow", uri, "--experiment", "e", "--field", "m", "--out", "x.csv", cwd=tmp_path
    )
    assert done.returncode == 2
    for text in (done.stdout, done.stderr):
        assert SECRET not in text
    assert not (tmp_path / "x.csv").exists()


def test_a_server_that_is_slow_to_start_is_waited_for() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(TrackingError):
            check_address(f"http://127.0.0.1:{port}", pauses=())
        listener.listen()
        check_address(f"http://127.0.0.1:{port}", pauses=())


def test_what_a_run_leaves_holds_no_secret_and_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets in the environment and in the error that ends a run; then every byte of the project is read."""
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    names = ("MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "SOME_VARIABLE")
    for name in names:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    init_tracking(tmp_path)
    plan = resolve("mpo", "smoke", root=tmp_path)
    run = plan.runs()[1]
    with pytest.raises(RuntimeError), open_run(run, run.spec.value, {}, tmp_path) as log:
        log.metrics(0, {"loss": 1.0})
        raise RuntimeError(f"cannot reach postgresql://user:{SECRET}@db/mlflow with password={SECRET}")
    plan.write_specs()
    read = 0
    for path in tmp_path.rglob("*"):
        if path.is_file() and "configs" not in path.parts:
            read += 1
            data = path.read_bytes()
            assert SECRET.encode() not in data, path
            assert b"SOME_VARIABLE" not in data, path
    assert read > 5


def test_the_interface_listens_on_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No option opens it to others, and the store's address is no argument, which other users could read."""
    from typer.testing import CliRunner

    from turnscale import cli
    from turnscale.track import store

    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: called.append(arguments))
    monkeypatch.setattr(store, "connect", lambda root: None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://user:{SECRET}@db/mlflow")
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "")
    done = CliRunner().invoke(cli.app, ["ui", "--port", "5999"])
    assert done.exit_code == 0, done.output
    (arguments,) = called
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert SECRET not in " ".join(arguments) + done.output
    for option in ("--host", "--address"):
        assert CliRunner().invoke(cli.app, ["ui", option, "0.0.0.0"]).exit_code == 2
