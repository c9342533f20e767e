"""The rehearsal finds what stops a lab on a GPU machine: each planted mistake ends with CUDA's or NCCL's error message."""

import pytest

SETUP = """
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from course_lib.distributed import launch, rank_device

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3))

images, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
"""
MIXED = "Expected all tensors to be on the same device"
NO_CPU = "No backend type associated with device type cpu"
# name: (the right lines of a worker on two ranks, the change that makes them wrong, the error message)
MISTAKES = {
    "all_reduce of a CPU tensor": (
        "total = torch.ones(2, device=device); dist.all_reduce(total); return total.tolist()", (", device=device", ""), NO_CPU,
    ),
    "broadcast of a CPU tensor": (
        "start = torch.zeros(2).to(device); dist.broadcast(start, 0); return start.tolist()", (".to(device)", ""), NO_CPU,
    ),
    "gather list of CPU tensors": (
        "mine = torch.ones(1, device=device); all = [torch.zeros(1, device=device) for _ in range(2)]; "
        "dist.all_gather(all, mine); return len(all)",
        ("torch.zeros(1, device=device)", "torch.zeros(1)"), "all tensors must be on one device",
    ),
    "message of a CPU tensor": (
        "box = torch.zeros(1, device=device); dist.send(box, 1) if rank == 0 else dist.recv(box, 0); return box.item()",
        (", device=device", ""), NO_CPU,
    ),
    "receive from any rank": (
        "box = torch.zeros(1, device=device); dist.send(box, 1) if rank == 0 else dist.recv(box, 0); return box.item()",
        ("recv(box, 0)", "recv(box)"), "does not support recvAnysource",
    ),
    "torch.tensor beside a tensor of the device": (
        "scale = torch.tensor([1.0, 2.0], device=device); return (torch.ones(2, device=device) * scale).tolist()",
        ("[1.0, 2.0], device=device", "[1.0, 2.0]"), MIXED,
    ),
    "model left on the CPU": (
        "return network().to(device)(images.to(device)).sum().item()", ("network().to(device)", "network()"), MIXED,
    ),
    "labels left on the CPU": (
        "model = network().to(device); return nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).item()",
        ("labels.to(device)", "labels"), MIXED,
    ),
    "target without a device": (
        "x = images.to(device); return nn.functional.mse_loss(x.sum(1), torch.zeros(6, device=device)).item()",
        ("torch.zeros(6, device=device)", "torch.zeros(6)"), MIXED,
    ),
    "numpy of a tensor of the device": (
        "return images.to(device).sum(0).cpu().numpy().tolist()", (".cpu()", ""), "can't convert cuda:",
    ),
    "np.asarray of a tensor of the device": (
        "return float(np.asarray(images.to(device).cpu()).sum())", (".cpu()", ""), "can't convert cuda:",
    ),
    "index of the device into a CPU tensor": (
        "order = torch.randperm(6, device=device); return images.to(device)[order].sum().item()", ("images.to(device)", "images"), MIXED,
    ),
    "the other rank's GPU": (
        "x = images.to(device); return (x @ torch.ones(4, 1, device=device)).sum().item()",
        ("torch.ones(4, 1, device=device)", "torch.ones(4, 1, device='cuda:' + str(1 - rank))"), MIXED,
    ),
    "a CPU generator": (
        "draw = torch.Generator(device).manual_seed(1); return torch.rand(2, device=device, generator=draw).tolist()",
        ("Generator(device)", "Generator()"), "Expected a 'cuda' device type for generator",
    ),
    "pinning what is on the device": (
        "return images.pin_memory().to(device).sum().item()", (".pin_memory().to(device)", ".to(device).pin_memory()"), "only dense CPU tensors can be pinned",
    ),
    "a file's tensors, not moved": (
        "torch.save(network().state_dict(), f'w{rank}'); w = torch.load(f'w{rank}', map_location=device)['0.weight']; "
        "return (images.to(device) @ w.T).sum().item()",
        (", map_location=device", ""), MIXED,
    ),
    "state of the optimiser left behind": (
        "model = network(); model = model.to(device); state = [torch.zeros_like(p) for p in model.parameters()]; "
        "[p.grad.add_(s) for p, s in zip(model.parameters(), state) if model(images.to(device)).sum().backward() is None]; return 1",
        ("torch.zeros_like(p)", "torch.zeros(p.shape)"), MIXED,
    ),
    "two ranks on one GPU": (
        "place = torch.device('cuda', rank); total = torch.ones(1, device=place); dist.all_reduce(total); return total.item()",
        ("('cuda', rank)", "('cuda', 0)"), "Duplicate GPU detected",
    ),
    "barrier without set_device": (
        "torch.cuda.set_device(rank); dist.barrier(); return 1", ("set_device(rank)", "set_device(0)"), "Duplicate GPU detected",
    ),
}  # fmt: skip


WORKER = "def worker_{}():\n    rank, device = dist.get_rank(), rank_device()\n    {}\n\n"


def test_without_a_mistake_all_lines_run(two_gpus):
    workers = "".join(WORKER.format(number, right) for number, (right, *_) in enumerate(MISTAKES.values()))
    names = ", ".join(f"worker_{number}" for number in range(len(MISTAKES)))
    call = f"workers = [{names}]\nlaunch(lambda: [worker() for worker in workers], 2, timeout=600)"
    assert two_gpus.run([("setup", SETUP), ("right", workers + call)]) is None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(two_gpus, mistake):
    right, (old, new), message = MISTAKES[mistake]
    assert old in right
    worker = WORKER.format("wrong", right.replace(old, new))
    ended = two_gpus.run([("setup", SETUP), ("wrong", worker + "launch(worker_wrong, 2, timeout=600)")])
    assert ended is not None and ended.startswith("cell wrong:") and message in ended, ended


@pytest.mark.parametrize("start", ["launch", "mpi_launch"])
def test_a_rank_on_a_gpu_is_found_in_a_lab_of_the_cores(two_unused_gpus, start):
    cell = f"import torch; from course_lib.distributed import {start} as start\nstart(lambda *comm: torch.ones(1).to(DEVICE).item(), 2)"
    assert two_unused_gpus.run([("right", cell.replace("DEVICE", "'cpu'"))]) is None
    ended = two_unused_gpus.run([("wrong", cell.replace("DEVICE", "'cuda'"))])
    assert ended is not None and "computes on the CPU by design" in ended, ended


SCRIPT = """
import os, torch, torch.distributed as dist
from course_lib.distributed import launch, rank_device

def script():
    torch.cuda.set_device(0)  # as in a new process; launch has chosen another
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    own_gpu = torch.cuda.device_count() >= local_ranks
    if own_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if own_gpu else "gloo")
    dist.barrier()
    total = torch.ones(1, device=rank_device())
    dist.all_reduce(total)
    raise RuntimeError(f"sum {total.item()} {dist.get_backend()}")

launch(script, 2, process_group=False, timeout=600)
"""


@pytest.mark.parametrize(
    ("gpus", "changes", "message"),
    [
        ("two_gpus", {}, "sum 2.0 nccl"),
        ("one_gpu", {}, "sum 2.0 gloo"),
        ("two_gpus", {"torch.cuda.set_device(local_rank)": "pass"}, "Duplicate GPU detected"),
        ("one_gpu", {"device_count() >= local_ranks": "is_available()"}, "invalid device ordinal"),
        (
            "one_gpu",
            {"device_count() >= local_ranks": "is_available()", "set_device(local_rank)": "set_device(0)"},
            "Duplicate GPU detected",
        ),
    ],
    ids=["right on two", "right on one", "no set_device", "NCCL wherever CUDA is", "NCCL on a shared GPU"],
)
def test_a_script_for_torchrun(request, gpus, changes, message):
    """With the environment that torchrun sets; torchrun itself starts such scripts in labs 02 and 12."""
    script = SCRIPT
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    ended = request.getfixturevalue(gpus).run([("script", script)])
    assert message in ended, ended
