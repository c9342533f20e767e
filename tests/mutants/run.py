"""Break the library on purpose, one line at a time, and see that a test fails each time.

python tests/mutants/run.py [NAME…] [--jobs 2] [--list]

`breakages.toml` lists the breakages: a file, a text that occurs in it once, what it becomes, and the tests that must
fail then. Each is made in a copy of the working tree, so that the tree itself is never changed. First the tests are run
without a breakage: all must pass. A breakage is *killed* where a test fails, and *survives* where all pass; one whose
text is no longer in its file is *lost*. Ends with 1 unless all are killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
SECONDS = 1800  # of one breakage's tests; a breakage that makes them hang is killed, too

# These look at where the packages are installed, and fail in any copy.
NOT_IN_A_COPY = (
    "tests/autograde/test_sandbox.py::test_of_the_repository_and_of_home_folders_only_the_public_packages_are_there",
    "tests/autograde/test_sandbox.py::test_the_system_is_read_only_and_the_working_folder_is_not",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only the breakages whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the names and the reasons, and run nothing")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a breakage first")
    options = parser.parse_args()
    mutants = tomllib.loads((HERE / "breakages.toml").read_text())["mutant"]
    chosen = [m for m in mutants if not options.names or any(name in m["name"] for name in options.names)]
    if options.list or not chosen:
        for mutant in chosen:
            print(f"{mutant['name']}: {mutant['why']}")
        return 0 if chosen else f"no breakage has a name with {' or '.join(options.names)} in it; see --list"
    lost = [mutant["name"] for mutant in chosen if (REPOSITORY / mutant["file"]).read_text().count(mutant["old"]) != 1]
    for name in lost:
        print(f"{name}: lost; its text must occur in its file once")
    chosen = [mutant for mutant in chosen if mutant["name"] not in lost]
    place = REPOSITORY / "runs"  # ignored by Git; a copy below /tmp would not be as a checkout is
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=place) as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(copy_of_tree(Path(folder, str(number))))
        tests = sorted({test for mutant in chosen for test in mutant["tests"]})
        if not options.no_baseline:
            print(f"{len(chosen)} breakages; first {len(tests)} tests without one", flush=True)
            intact = copies.get()
            if (failure := run_tests(intact, tests, options.jobs)) != "passed":
                print(failure)
                return "without a breakage the tests must pass"
            copies.put(intact)

        def judge(mutant: dict) -> bool:
            copy = copies.get()
            path = copy / mutant["file"]
            whole = path.read_text()
            try:
                path.write_text(whole.replace(mutant["old"], mutant["new"]))
                killed = run_tests(copy, mutant["tests"]) != "passed"
            finally:
                path.write_text(whole)
                copies.put(copy)
            print(f"{mutant['name']}: {'killed' if killed else 'SURVIVES'}", flush=True)
            return killed

        with ThreadPoolExecutor(options.jobs) as pool:
            killed = sum(pool.map(judge, chosen))
    print(f"{killed} of {len(chosen)} killed, {len(lost)} lost")
    return 0 if killed == len(chosen) and not lost else 1


def copy_of_tree(folder: Path) -> Path:
    """The files that Git knows or would add, as they are in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    if (REPOSITORY / "data").is_dir():
        (folder / "data").symlink_to(REPOSITORY / "data")
    return folder


def run_tests(copy: Path, tests: list[str], processes: int = 0) -> str:
    """``passed``, or the end of pytest's output; without several processes the first failure is enough.

    The copy's packages come before the installed ones, in every process. Slow tests are left out.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not (slow or gpu or slurm or browser)"]
    command += ["-p", "no:cacheprovider", "-n", str(processes), "--dist", "loadfile"]
    command += [f"--deselect={test}" for test in NOT_IN_A_COPY]
    command += [*([] if processes else ["-x"]), *tests]
    environment, limit = (
        os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        None if processes else SECONDS,
    )
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return "it hung"
    if done.returncode not in (0, 1, 2):  # 2: a module could not be imported
        sys.exit(f"pytest could not run {' '.join(tests)}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    return "passed" if done.returncode == 0 else done.stdout[-3000:]


if __name__ == "__main__":
    sys.exit(main())
