"""A Slurm of two nodes on this machine's loopback: started in seconds, taken down to the last process.

Needs root and Debian's ``slurm-wlm`` and ``munge`` (whose slurmd serves several nodes on one machine). It is for
tests: both nodes are this machine, nothing confines a job, and accounting is off.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import free_port
from turnscale.track.run import terminable

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
CONFIGURATION = Path("/etc/slurm/slurm.conf")
"""Where Slurm's own commands look: a job's environment may have lost ``SLURM_CONF``."""
PREFIX = "turnscale-slurm-"
NODES = ("n1", "n2")
CPUS = 2
START_SECONDS = 60
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

SLURM_CONF = """\
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=2
ReturnToService=2
SlurmdParameters=config_overrides
SwitchType=switch/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
MinJobAge=600
InactiveLimit=0
KillWait=5
GresTypes=gpu
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory={memory}"
    " Gres=gpu:1 State=UNKNOWN"
)
# A stand-in device, so that a machine without a GPU can be asked for one and lend it to one job at a time.
GRES_CONF = "NodeName={names} Name=gpu File=/dev/null\n"


class Unavailable(RuntimeError):
    """Why no Slurm can be started on this machine."""


@dataclass(frozen=True)
class Job:
    """A job as ``squeue`` tells it."""

    number: str
    state: str
    node: str
    gpus: str
    comment: str


@dataclass(frozen=True)
class Cluster:
    """A running Slurm; its files are in ``folder``."""

    folder: Path

    def jobs(self) -> list[Job]:
        """Every job that Slurm remembers, finished ones too, oldest first."""
        form = "jobid:20|,state:20|,nodelist:20|,tres-per-job:40|,comment:400|"
        said = _output("squeue", "--all", "--states=all", "--noheader", "--sort=i", f"--Format={form}")
        rows = [[word.strip() for word in line.split("|")[:5]] for line in said.splitlines()]
        return [Job(*row) for row in rows]

    def cancel(self, number: str) -> None:
        """``scancel`` one job."""
        _output("scancel", number)


def why_not() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    if os.path.lexists(CONFIGURATION) and not _left_behind(CONFIGURATION):
        return f"{CONFIGURATION} is there: this machine has a Slurm of its own"
    return None


@contextmanager
def loopback_slurm() -> Iterator[Cluster]:
    """A Slurm with two idle nodes; its jobs, daemons and files are gone when the block ends, however it ends.

    Raises:
        Unavailable: it cannot be started here, or a daemon did not come up.
    """
    reason = why_not()
    if reason is not None:
        raise Unavailable(reason)
    # Orphans of our daemons (the keepers of job steps) become our children, so that we can find and end them.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    daemons: list[subprocess.Popen[bytes]] = []
    linked = False
    with terminable():
        try:
            _write_configuration(folder)
            if _left_behind(CONFIGURATION):
                CONFIGURATION.unlink()
            CONFIGURATION.symlink_to(folder / "slurm.conf")
            linked = True
            cluster = Cluster(folder)
            _start(folder, daemons)
            yield cluster
        finally:
            _stop(daemons, running=linked)
            if linked:
                CONFIGURATION.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            _prctl(PR_SET_CHILD_SUBREAPER, 0)


def _left_behind(link: Path) -> bool:
    """Whether a link is that of an earlier test that was killed: it leads to a folder of ours that nobody uses."""
    if not link.is_symlink():
        return False
    target = link.readlink()
    if not target.parent.name.startswith(PREFIX):
        return False
    try:
        owner = int((target.parent / "owner.pid").read_text())
    except FileNotFoundError:
        return True
    return not Path(f"/proc/{owner}").exists()


def _write_configuration(folder: Path) -> None:
    for name in ("state", "log", "run", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    (folder / "owner.pid").write_text(str(os.getpid()))
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    nodes = [
        NODE.format(name=name, port=free_port(), cpus=CPUS, memory=min(8000, memory * 4 // 5))
        for name in NODES
    ]
    text = SLURM_CONF.format(
        folder=folder, controller_port=free_port(), nodes="\n".join(nodes), names=",".join(NODES)
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(GRES_CONF.format(names=",".join(NODES)))


def _start(folder: Path, daemons: list[subprocess.Popen[bytes]]) -> None:
    run = folder / "run"
    munge = ["munged", "--force", "--foreground", "--key-file", str(folder / "munge.key")]
    munge += ["--socket", str(run / "munge.socket"), "--pid-file", str(run / "munged.pid")]
    munge += ["--log-file", str(folder / "log/munged.log"), "--seed-file", str(run / "munged.seed")]
    conf = str(folder / "slurm.conf")
    _spawn(daemons, folder, munge)
    _until(daemons, folder, lambda: (run / "munge.socket").exists())
    _spawn(daemons, folder, ["slurmctld", "-D", "-c", "-f", conf])
    for node in NODES:
        _spawn(daemons, folder, ["slurmd", "-D", "-N", node, "-f", conf])
    _until(daemons, folder, lambda: _idle_nodes() == len(NODES))


def _spawn(daemons: list[subprocess.Popen[bytes]], folder: Path, command: list[str]) -> None:
    with (folder / "log" / f"{command[0]}-{len(daemons)}.out").open("wb") as sink:
        daemons.append(
            subprocess.Popen(
                command,
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PATH": _path()},
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
                preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # if we are killed
            )
        )


def _until(daemons: Sequence[subprocess.Popen[bytes]], folder: Path, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > end or any(daemon.poll() is not None for daemon in daemons):
            logs = [path.read_text(errors="replace")[-800:] for path in sorted((folder / "log").iterdir())]
            raise Unavailable("Slurm did not come up:\n" + "\n".join(logs))
        time.sleep(0.05)


def _idle_nodes() -> int:
    said = subprocess.run(
        ["sinfo", "--noheader", "--states=idle", "--format=%D"], capture_output=True, text=True
    )
    return int(said.stdout.strip() or 0) if said.returncode == 0 else 0


def _stop(daemons: list[subprocess.Popen[bytes]], running: bool) -> None:
    """Cancel every job and end the daemons, last started first, and whatever of theirs is left."""
    if running and len(daemons) > 1 and daemons[1].poll() is None:
        subprocess.run(["scancel", "--user=root"], capture_output=True)
        end = time.monotonic() + 15
        while time.monotonic() < end and _open_jobs():
            time.sleep(0.1)
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    keepers = [pid for pid in _children(os.getpid()) if _name(pid).startswith("slurmstepd")]
    for pid in [child for keeper in keepers for child in (*_descendants(keeper), keeper)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for pid in keepers:
        os.waitpid(pid, 0)


def _open_jobs() -> bool:
    said = subprocess.run(["squeue", "--noheader"], capture_output=True, text=True)
    return said.returncode == 0 and bool(said.stdout.strip())


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(words[1]) == pid:
                found.append(int(entry.name))
    return found


def _descendants(pid: int) -> list[int]:
    children = _children(pid)
    return [below for child in children for below in (*_descendants(child), child)]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _path() -> str:
    """``PATH`` with the folders of system daemons."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
