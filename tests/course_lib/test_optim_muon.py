"""Muon of two given functions: the oracle is torch.optim's Muon and AdamW, with their own orthogonalisation."""

import copy

import torch
from torch import nn
from torch.optim import _muon

from course_lib.models import SmallCNN
from course_lib.optim import Muon, MuonWithAdamW, muon_groups


def orthogonalise(matrix):
    """PyTorch's own, so that nothing but the optimiser around it can differ."""
    return _muon._zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7).float()


def adamw_step(w, g, state, lr, weight_decay):
    if not state:
        state["optimizer"] = torch.optim.AdamW([w], lr, weight_decay=weight_decay)
    w.grad = g
    state["optimizer"].step()


def trained(network, optimizers, steps=5):
    torch.manual_seed(1)
    images = torch.randn(16, 12)
    for _ in range(steps):
        network.zero_grad()
        nn.functional.cross_entropy(network(images), torch.arange(16) % 4).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [w.detach() for w in network.parameters()]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 4))


def test_hidden_matrices_move_as_with_torch_and_the_rest_as_with_adamw():
    mine, theirs = network(), network()
    hidden = theirs[2].weight
    rest = [w for w in theirs.parameters() if w is not hidden]
    expected = trained(
        theirs,
        [torch.optim.Muon([hidden], lr=0.02, weight_decay=0.0), torch.optim.AdamW(rest, 0.002, weight_decay=0.0)],
    )
    found = trained(mine, [Muon(muon_groups(mine), 0.02, orthogonalise, adamw_step)])
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-3)  # bfloat16, whose rounding turns on the last bit of the velocity


def test_convolutions_are_matrices_and_groups_share_every_weight_out():
    model = SmallCNN(in_channels=1, num_classes=10)
    hidden, rest = (group["params"] for group in muon_groups(model))
    assert len(hidden) + len(rest) == len(list(model.parameters())) and all(w.dim() > 1 for w in hidden)
    seen, before = [], copy.deepcopy(hidden[0].detach())
    optimizer = Muon(
        muon_groups(model), 0.1, lambda matrix: seen.append(matrix.shape) or torch.ones_like(matrix), adamw_step
    )
    nn.functional.cross_entropy(model(torch.randn(4, 1, 28, 28)), torch.arange(4)).backward()
    rest[0].grad, first = None, rest[0].detach().clone()
    optimizer.step()
    rows, columns = before.shape[0], before[0].numel()
    assert seen[0] == (rows, columns) and torch.equal(rest[0], first)
    assert torch.allclose(before - hidden[0], torch.full_like(before, 0.1 * max(1, rows / columns) ** 0.5))


def test_pytorch_s_muon_takes_the_hidden_convolutions_as_matrices():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    both = MuonWithAdamW(model, 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(both, lambda step: 0.5)
    nn.functional.cross_entropy(model(torch.randn(6, 1, 5, 5)), torch.arange(6) % 2).backward()
    hidden = nn.Parameter(twin[1].weight.detach().flatten(1))
    hidden.grad = model[1].weight.grad.flatten(1)
    for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        mine.grad = theirs.grad.clone()
    torch.optim.Muon([hidden], 0.05, weight_decay=0.0).step()
    torch.optim.AdamW([p for p in twin.parameters() if p is not twin[1].weight], 0.005, weight_decay=0.0).step()
    both.step()
    scheduler.step()
    for (name, mine), theirs in zip(twin.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(theirs, hidden.view_as(theirs) if name == "1.weight" else mine)
