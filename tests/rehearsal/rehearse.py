"""Run a lab's notebook on pretended GPUs: all code cells, in order, at the size of its smoke profile.

A process of its own, so that nothing pretended reaches the tests. Each line that it reads is a JSON list of cells, (id,
source); it answers with a JSON line: null, or where and how they ended.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path


def code_cells(notebook: Path, parameters: dict) -> list[tuple[str, str]]:
    """Id and source of each code cell; behind the cell of the parameters, one that overlays them."""
    cells = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            cells.append((cell["id"], "".join(cell["source"])))
            if "parameters" in cell["metadata"].get("tags", ()):
                cells.append(
                    ("injected-parameters", "\n".join(f"{name} = {value!r}" for name, value in parameters.items()))
                )
    return cells


def may_use_gpus(notebook: Path) -> bool:
    """Whether the code names a device or launches ranks; a lab that does neither (MPI, HogWild) computes on CPUs by design."""
    return any(
        getattr(node, "id", getattr(node, "attr", None)) in ("rank_device", "cuda", "device", "launch", "run_grid")
        for _, source in code_cells(notebook, {})
        for node in ast.walk(ast.parse(source))
    )


def parameters(notebook: Path, gpus: int) -> dict:
    """Those of the smoke profile, smaller by the kind that their names say; as many ranks as GPUs where the lab has several."""
    import yaml

    chosen = yaml.safe_load((notebook.parent / "profiles.yaml").read_text())["smoke"]
    batches = [chosen[name] for name in chosen if name.endswith(("batch", "batch_size"))]
    most = 128 if batches and max(batches) <= 32 else 512
    few = 64 if batches and max(batches) <= 16 else 128  # at least two steps on each of two ranks
    for name, value in chosen.items():
        if name.endswith("epochs"):
            chosen[name] = min(value, 2 if name == "baseline_epochs" else 1)  # the first of a baseline does not count
        elif name == "train_samples":
            chosen[name] = few
        elif name == "validation_images":
            chosen[name] = few // 4  # of the training samples
        elif name == "study_samples":
            chosen[name] = min(value or most, few if most == 128 else most)
        elif name.endswith(("samples", "images")):
            chosen[name] = min(value or most, most)
        elif name.endswith(("steps", "updates", "rounds", "repeats")):
            chosen[name] = min(value, 5)
        elif name.endswith("seconds"):
            chosen[name] = 0.001
        elif name == "increments":
            chosen[name] = 100
    return chosen | {"num_gpus": gpus}


def run(cells: list[tuple[str, str]]) -> str | None:
    """Run the cells in the working folder; returns None or the failing cell and its traceback."""
    import matplotlib.pyplot as plt

    names = {"__name__": "__main__", "display": print}
    for cell, source in cells:
        file = f"<cell {cell}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        began = time.process_time(), time.perf_counter()
        try:
            exec(compile(source, file, "exec"), names)
        except BaseException:
            return f"cell {cell}:\n{traceback.format_exc()}"
        plt.close("all")
        if os.environ.get("REHEARSAL_TIMES"):
            print(f"{cell:30} {time.perf_counter() - began[1]:6.1f} s", file=sys.stderr)
    return None


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the cells print does not reach the answers
    for line in sys.stdin:
        request = json.loads(line)
        request = code_cells(Path(request["notebook"]), request["parameters"]) if isinstance(request, dict) else request
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            ended = run(request)
            os.chdir("/")
        print(json.dumps(ended), file=answers, flush=True)


if __name__ == "__main__":
    main()
