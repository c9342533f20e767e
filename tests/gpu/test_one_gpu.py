"""What the library computes on one GPU, against the same on the CPU. Not run on a GPU so far."""

import copy
import math
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from course_lib.data import batches as input_module
from course_lib.data.batches import Batches, PackedDataset, load, on_device
from course_lib.data.timed_epochs import TimedEpochs
from course_lib.metrics.least_seconds import least_seconds
from course_lib.optim import KFAC, LAMB, LARS, MuonWithAdamW, NovoGrad
from course_lib.system.gpu_memory import DeviceMemoryError, free_memory, memory_advice, peak_bytes, until_full
from course_lib.system.hardware import Utilisation
from course_lib.training.checkpoint import Checkpoint
from course_lib.training.loop import fit
from course_lib.training.precision import accelerate_model, bfloat16_pays

pytestmark = pytest.mark.gpu
MIB = 2**20


def network():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(),
        nn.Linear(512, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return load("cifar10-synthetic", train_samples=256, test_samples=64)


# Precision


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
def test_bfloat16_from_capability_8_0_on(device, pretended, monkeypatch, capability):
    """A V100 or T4 computes the same network in float32: it would emulate bfloat16."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    bfloat16_pays.cache_clear()
    try:
        assert bfloat16_pays(device) == (capability >= (8, 0))
        model, seen = accelerate_model(network(), device), []
        model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
        assert model(torch.randn(4, 3, 32, 32, device=device)).dtype == torch.float32
        assert seen == [torch.bfloat16 if capability >= (8, 0) and not pretended else torch.float32]
    finally:
        bfloat16_pays.cache_clear()


def test_float16_with_a_scaled_loss(real_gpu):
    """The first scale overflows: these steps are left out, and K-FAC's averages see none of them."""
    model, x, y = (
        network().to(real_gpu), torch.randn(32, 3, 32, 32, device=real_gpu), torch.arange(32, device=real_gpu) % 10,
    )  # fmt: skip
    optimizer, kfac = torch.optim.SGD(model.parameters(), 0.01), KFAC(model, 0.1)
    scaler, losses = torch.amp.GradScaler("cuda", init_scale=2.0**24), []
    for _ in range(30):
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        kfac.step()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert scaler.get_scale() < 2.0**24 and losses[-1] < losses[0] and math.isfinite(losses[-1])
    assert all(layer.A.isfinite().all() and layer.G.isfinite().all() for layer in kfac.layers.values())


# Input


@pytest.mark.parametrize("resident", [True, False])
def test_batches_are_those_of_the_cpu(device, data, monkeypatch, resident):
    """Of a resident split, and of one in pinned memory that is copied while the GPU works."""
    monkeypatch.setattr(input_module, "fits", lambda images, device: resident)
    made = [
        Batches(data.train, 32, place, mean=data.mean, std=data.std, shuffle=True, seed=3) for place in ("cpu", device)
    ]
    assert made[1].images.is_cuda == resident
    for (images, labels), (there, there_too) in zip(*made, strict=True):
        assert there.device == there_too.device == device
        busy = there @ there.mT  # queued behind the copy
        torch.testing.assert_close(there.cpu(), images)
        assert torch.equal(there_too.cpu(), labels) and busy.isfinite().all()


def test_a_loader_s_batches_are_those_of_the_cpu_from_pinned_memory(device, data):
    host = DataLoader(PackedDataset(data.train), 32)
    pinned = on_device(DataLoader(PackedDataset(data.train), 32, pin_memory=True), device)
    for (images, labels), (there, there_too) in zip(host, pinned, strict=True):
        assert there.device == there_too.device == device
        assert torch.equal(there.cpu(), images) and torch.equal(there_too.cpu(), labels)


# Optimisers

OPTIMISERS = {
    "sgd foreach": lambda m: torch.optim.SGD(m.parameters(), 0.05, 0.9, foreach=True),
    "sgd fused": lambda m: torch.optim.SGD(m.parameters(), 0.05, 0.9, fused=True),
    "adamw foreach": lambda m: torch.optim.AdamW(m.parameters(), 0.01, foreach=True),
    "adamw fused": lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True),
    "novograd": lambda m: NovoGrad(m.parameters(), 0.01),
    "novograd foreach": lambda m: NovoGrad(m.parameters(), 0.01, foreach=True),
    "lars": lambda m: LARS(m.parameters(), 0.1),
    "lamb": lambda m: LAMB(m.parameters(), 0.01),
    "muon": lambda m: MuonWithAdamW(m, 0.02),
    "kfac": lambda m: KFAC(m, 0.03),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_steps_as_on_the_cpu(device, name):
    ended = []
    for place in ("cpu", device):
        model = network().double().to(place)
        optimizer = OPTIMISERS[name](model)
        plain = torch.optim.SGD(model.parameters(), 0.05) if name == "kfac" else None
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            x = torch.randn(16, 3, 32, 32, generator=generator, dtype=torch.float64).to(place)
            model.zero_grad()
            F.cross_entropy(model(x), torch.arange(16, device=place) % 10).backward()
            optimizer.step()
            if plain:
                plain.step()
        ended.append([parameter.detach().cpu() for parameter in model.parameters()])
    near = {"rtol": 0.02, "atol": 2e-3} if name == "muon" else {"rtol": 1e-6, "atol": 1e-8}  # Muon computes in bfloat16
    torch.testing.assert_close(ended[1], ended[0], **near)


# Checkpoints


@pytest.mark.parametrize("order", [("cuda", "cpu"), ("cpu", "cuda")], ids="-to-".join)
@pytest.mark.parametrize("fused", [False, True])
def test_a_training_resumes_on_the_other_device(device, data, tmp_path, order, fused):
    def trained(place, epochs, checkpoint):
        model = network().to(place)
        optimizer = torch.optim.SGD(model.parameters(), 0.02, 0.9, fused=fused)
        common = {"mean": data.mean, "std": data.std}
        train = Batches(data.train, 32, place, shuffle=True, **common)
        history = fit(
            model, train, Batches(data.test, 64, place, **common), optimizer, epochs=epochs, checkpoint=checkpoint, quiet=True
        )
        return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, history, optimizer

    checkpoint = Checkpoint(tmp_path / "training.safetensors")
    first, second = order
    trained(first, 1, checkpoint)
    resumed, history, optimizer = trained(second, 2, checkpoint)
    whole, _, _ = trained("cpu", 2, None)
    assert len(history.epochs) == 2
    state = next(iter(optimizer.state.values()))
    assert state["momentum_buffer"].device.type == second
    torch.testing.assert_close(resumed, whole, rtol=2e-2, atol=2e-3)


# Memory


def test_peak_bytes_are_the_allocator_s(real_gpu):
    def work():
        first = torch.empty(3 * MIB, dtype=torch.uint8, device=real_gpu)
        del first
        torch.empty(8 * MIB, dtype=torch.uint8, device=real_gpu)

    assert peak_bytes(work) == 8 * MIB
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=real_gpu)
    before = free_memory(real_gpu)
    assert peak_bytes(work) == 8 * MIB and before < torch.cuda.get_device_properties(real_gpu).total_memory
    del held


def test_what_a_training_keeps_and_saves_is_what_the_allocator_holds(real_gpu):
    """Lab 01's figures: 12 bytes per parameter with momentum, and each image's storages that autograd saves, once."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(real_gpu)
    x = torch.randn(1024, 1024, device=real_gpu)
    model(x).sum().backward()  # cuBLAS takes its workspace
    model.zero_grad()
    parameters = sum(p.numel() for p in model.parameters())
    saved = {}
    hooks = (lambda t: saved.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t)
    before = torch.cuda.memory_allocated()
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        loss = torch.exp(torch.exp(model(x) * 1e-3)).sum()
    held = torch.cuda.memory_allocated() - before
    new = sum(saved.values()) - 4 * (parameters - 4 * 1024) - x.nbytes  # the weights, without biases, and the input were there
    assert abs(held - new) <= 0.05 * new, (held, new)  # a block may be a little larger than its tensor
    loss.backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    optimizer.step()
    del loss
    kept = torch.cuda.memory_allocated() - before + 4 * parameters
    assert abs(kept - 12 * parameters) <= 0.01 * 12 * parameters, kept


def test_the_search_for_the_largest_batch_ends_where_the_memory_does(device, capsys):
    total = torch.cuda.get_device_properties(device).total_memory
    sizes = [MIB, 16 * MIB, 2 * total]
    found = until_full(lambda size: float(torch.zeros(size, dtype=torch.uint8, device=device).numel()), sizes)
    assert list(found) == sizes[:2] and f"size {2 * total} does not fit" in capsys.readouterr().out
    with pytest.raises(DeviceMemoryError, match=r"the memory of cuda:0 is full") as error, memory_advice(device):
        torch.empty(2 * total, dtype=torch.uint8, device=device)
    assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), memory_advice(device):  # another error passes
        torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)
    assert torch.ones(MIB, device=device).sum().item() == MIB  # the process computes as before


# Clocks


def queue(device, products=200):
    """Work that is queued at once and takes the GPU much longer."""
    a = torch.randn(2048, 2048, device=device)

    def work():
        b = a
        for _ in range(products):
            b = (a @ b).clamp(-1, 1)
        return b

    return work


def test_each_clock_waits_for_the_gpu(real_gpu):
    work = queue(real_gpu)
    work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    true = begin.elapsed_time(end) / 1000

    class OneBatch:
        def set_epoch(self, epoch):
            pass

        def __iter__(self):
            yield None

    epochs = TimedEpochs(OneBatch(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1))
    for _ in epochs:
        work()
    assert min(least_seconds(work), epochs.seconds[0]) > 0.5 * true


def test_utilisation_is_nvml_s(real_gpu):
    work, start = queue(real_gpu), time.monotonic()
    with Utilisation(0.1) as busy:
        while time.monotonic() < start + 3 or not busy.gpu:
            work()
            torch.cuda.synchronize()
    assert busy.mean_gpu > 50 and "GPU" in str(busy)


def test_a_copy_of_a_network_in_bfloat16_is_one_too(device):
    model = accelerate_model(network(), device, "bfloat16")
    x = torch.randn(4, 3, 32, 32, device=device)
    torch.testing.assert_close(copy.deepcopy(model).eval()(x), model.eval()(x))
