"""What the live view costs a training in a notebook's kernel.

The same training runs in one kernel again and again, by turns as JupyterLab asks for a cell (bar and curves, two
updates per second) and as papermill does (plain lines); the ratio is taken pair by pair. The kernel has one core of its
own where there are two, so that the program which takes its messages does not share it. Target: at most 1.03.

    python benchmarks/live_view.py [--pairs 10] [--epochs 6]
"""

import json
import os

import torch
from harness import alternate, conditions, parse_options, ratios, summary
from jupyter_client import KernelManager

from course_lib.data.batches import load

PREPARE = """
import json, os, time
os.sched_setaffinity(0, {core})
import torch
torch.set_num_threads(1)
from course_lib.data.batches import Batches, load
from course_lib.models import SmallCNN
from course_lib.training.loop import fit

data = load("fashion-mnist-small", train_samples=4000)

def train():
    torch.manual_seed(0)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train = Batches(data.train, 64, mean=data.mean, std=data.std, shuffle=True)
    test = Batches(data.test, 500, mean=data.mean, std=data.std)
    wall, processor = time.perf_counter(), time.process_time()
    fit(model, train, test, optimizer, epochs={epochs})
    return [time.perf_counter() - wall, time.process_time() - processor]
"""
MEASURE = "measured = train()\nfrom IPython.display import publish_display_data\npublish_display_data({'application/json': measured})"


class Notebook:
    """A kernel, and what its cells publish."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, live: bool) -> tuple[list[float] | None, int]:
        """The JSON that the cell publishes, and how many pictures it shows."""
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        request = self.client.session.msg("execute_request", content, metadata={"cellId": "one"} if live else {})
        self.client.shell_channel.send(request)
        result, pictures = None, 0
        while True:
            message = self.client.get_iopub_msg(timeout=600)
            if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                continue
            content = message["content"]
            if message["msg_type"] == "error":
                raise RuntimeError(f"{content['ename']}: {content['evalue']}")
            bundle = content.get("data", {})
            result = bundle.get("application/json", result)
            pictures += "text/html" in bundle
            if content.get("execution_state") == "idle":
                return result, pictures

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def main() -> None:
    options = parse_options(__doc__, pairs=10, epochs=6)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    torch.set_num_threads(1)  # as in the kernel
    data = load("fashion-mnist-small", train_samples=4000)
    print(conditions(ranks=1, data=data, batch=64, epochs=options.epochs, pairs=options.pairs))
    notebook = Notebook()
    try:
        notebook.run(PREPARE.format(core=json.dumps(cores[-1:]), epochs=options.epochs), False)
        for live in (True, False):
            notebook.run("train()", live)
        candidates = {"plain": lambda: notebook.run(MEASURE, False), "live": lambda: notebook.run(MEASURE, True)}
        measured = alternate(candidates, options.pairs)
    finally:
        notebook.close()
    print(f"live: {summary([pictures for _, pictures in measured['live']], 0)} pictures")
    for index, clock in enumerate(("wall clock", "processor time")):
        live, plain = ([seconds[index] for seconds, _ in measured[name]] for name in ("live", "plain"))
        print(
            f"{clock}: live {summary(live, 2)} s, plain {summary(plain, 2)} s, live / plain {summary(ratios(live, plain))}"
        )


if __name__ == "__main__":
    main()
