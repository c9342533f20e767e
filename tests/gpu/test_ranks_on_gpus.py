"""Ranks on GPUs: one on NCCL, two on one GPU by Gloo, and each on its own where there are two. Not run on a GPU so far."""

import json
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course_lib import distributed as ours
from course_lib.distributed import default_backend, hogwild, launch, rank_device
from course_lib.distributed.messages.backend_support import measured_support

pytestmark = pytest.mark.gpu
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a rank cannot import the tests
ROOT = Path(__file__).parents[2]


def facts():
    total = torch.ones(3, device=rank_device())
    dist.all_reduce(total)
    return dist.get_backend(), str(rank_device()), torch.cuda.current_device(), total.tolist()


def test_one_rank_takes_nccl(device):
    assert launch(facts, 1, timeout=600) == [("nccl", "cuda:0", 0, [1.0] * 3)]


def test_two_ranks_on_one_gpu_take_gloo_and_a_note_says_why(device, capsys):
    """Gloo reduces CUDA tensors; it sends and receives tensors of the host only."""
    if torch.cuda.device_count() > 1:
        pytest.skip("there is a GPU for each of two ranks")
    assert default_backend(2) == "gloo"
    sys.modules["course_lib.distributed.launching.launch"]._note_shared_gpus.cache_clear()  # once per process
    assert launch(facts, 2, timeout=600) == [("gloo", "cuda:0", 0, [2.0] * 3)] * 2
    note = "note: 2 ranks share 1 GPU(s), and NCCL refuses that: messages go by Gloo; expect no speed-up"
    assert note in capsys.readouterr().out


def test_the_table_of_backends_says_what_runs_here(device):
    gloo = measured_support("gloo", "GPU")
    assert all(gloo[name] == "✓" for name in ("broadcast", "all_reduce", "all_gather")), gloo
    nccl = measured_support("nccl", "GPU")
    many = torch.cuda.device_count() > 1
    assert set(nccl.values()) == ({"✓"} if many else {"– NCCL wants a GPU for each rank"}), nccl


def collectives():
    """Each of ours and torch.distributed's, on the same CUDA tensor."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    for name, mine, theirs in (
        ("whole", ours.whole_tensor_all_reduce, dist.all_reduce),
        ("ring", ours.ring_all_reduce, dist.all_reduce),
        ("broadcast", lambda t: ours.linear_broadcast(t, size - 1), lambda t: dist.broadcast(t, size - 1)),
        ("reduce", lambda t: ours.linear_reduce(t, 0), lambda t: dist.reduce(t, 0)),
    ):
        a, b = (((torch.arange(10_007, device=rank_device()) * (rank + 3)) % 11).float() for _ in range(2))
        mine(a)
        theirs(b)
        results[name] = bool(torch.equal(a, b)) or (name == "reduce" and rank > 0)
    return results


class Wrapped(nn.Module):
    """Six layers, so that buckets and shards are several."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)), nn.Linear(32, 10))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


def trained(how, steps=4, batch=24):
    """The weights after four steps with this rank's share of each batch."""
    from torch.nn.parallel import DistributedDataParallel

    device, rank, size = rank_device(), dist.get_rank(), dist.get_world_size()
    model = Wrapped().to(device)
    wrapped = {
        "DDP": lambda m: DistributedDataParallel(m, device_ids=[device]),
        "naive": ours.NaiveDataParallel,
        "overlapped": ours.OverlappedDataParallel,
        "buckets": lambda m: ours.BucketedDataParallel(m, bucket_mb=0.01),
        "average": lambda m: m,
        "ZeRO-1": lambda m: DistributedDataParallel(m, device_ids=[device]),
        "ZeRO-3": ours.ShardedDataParallel,
    }[how](model)
    if how == "ZeRO-1":
        optimizer = ours.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(batch, 32, generator=generator)[rank::size].to(device)
        y = torch.randint(10, (batch,), generator=generator)[rank::size].to(device)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        if how == "average":
            ours.average_gradients(model, len(x))
        elif how in ("naive", "overlapped", "buckets", "ZeRO-3"):
            wrapped.finish_gradient_synchronization()
        optimizer.step()
    with torch.no_grad():
        return wrapped(torch.ones(2, 32, device=device)).cpu()


def all_trained():
    return {how: trained(how) for how in ("DDP", "naive", "overlapped", "buckets", "average", "ZeRO-1", "ZeRO-3")}


def test_one_rank_on_nccl_trains_the_same_in_each_way(device):
    (results,) = launch(all_trained, 1, timeout=600)
    for how, outputs in results.items():
        torch.testing.assert_close(outputs, results["DDP"], msg=how)


def test_our_collectives_across_nccl(two_gpus):
    assert launch(collectives, two_gpus, timeout=600) == [dict.fromkeys(("whole", "ring", "broadcast", "reduce"), True)] * 2


def test_ranks_on_their_own_gpus_train_the_same_in_each_way(two_gpus):
    for results in launch(all_trained, two_gpus, timeout=600):
        for how, outputs in results.items():
            torch.testing.assert_close(outputs, results["DDP"], rtol=1e-3, atol=1e-4, msg=how)


def parallel_layers():
    torch.manual_seed(0)
    whole, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(rank_device()), torch.randn(4, 8)
    part = nn.Sequential(
        ours.ColumnParallelLinear.from_linear(whole[0]), nn.GELU(), ours.RowParallelLinear.from_linear(whole[2])
    )
    x = x.to(rank_device())
    return (part(x) - whole(x)).abs().max().item()


def test_parallel_layers_across_nccl(two_gpus):
    assert max(launch(parallel_layers, two_gpus, timeout=600)) < 1e-5


def test_hogwild_refuses_a_gpu_and_says_why(device):
    with pytest.raises(ValueError, match=r"share memory of the CPU, but the model is on cuda:0"):
        hogwild(lambda model, rank, lock: None, nn.Linear(2, 2).to(device), 2)


def test_each_run_of_a_sweep_has_its_own_gpu(real_gpu, tmp_path):
    words = ["sweep", "01", "-g", "seed=0,1", "--profile", "smoke", "-o", str(tmp_path), "--jobs", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "course_lib.runs.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    assert len(records) == 2 and all(record["device"].startswith("cuda") for record in records)


# Labs


@pytest.mark.parametrize("number", [f"{number:02}" for number in range(1, 15)])
def test_a_lab_s_smoke_profile(real_gpu, tmp_path, number):
    """Labs 08 and 09 compute on the node's cores by design."""
    ranks = min(2, torch.cuda.device_count()) if number not in ("08", "09") else 2
    words = ["run", number, "--profile", "smoke", "-o", str(tmp_path / "run")]
    words += [] if number in ("01", "05") else ["-p", "num_gpus", str(ranks)]
    done = subprocess.run(
        [sys.executable, "-m", "course_lib.runs.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    device = json.loads((tmp_path / "run" / "run.json").read_text())["device"]
    assert device.startswith("cuda") or number in ("08", "09"), device


def test_the_doctor_is_content(real_gpu):
    from course_lib.system.doctor import examine, gpus

    assert [finding.state for finding in examine([gpus.driver])] == ["fine"]
    assert all(finding.state != "problem" for finding in examine([gpus.nccl]))
