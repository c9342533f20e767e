"""Lab 04's answers, right and wrong. Right is what PyTorch's SGD, AdamW and LinearLR do, and the library's NovoGrad."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace

import torch

from course_lib.exercises.description import Answers, Mistake
from course_lib.optim import NovoGrad

__all__ = ["ANSWERS"]


def _by_torch(w, g, state, lr, momentum=0.0, nesterov=False):
    if not state:
        state["optimizer"] = torch.optim.SGD([w], lr, momentum, nesterov=nesterov)
    w.grad = g
    state["optimizer"].step()


def _sgd(
    velocity=lambda v, g, m: m * v + g,
    direction=lambda v, g, m, nesterov: g + m * v if nesterov else v,
    move=lambda w, d, lr: w.sub_(lr * d),
):  # fmt: skip
    def step(w, g, state, lr, momentum=0.0, nesterov=False):
        state["v"] = velocity(state.get("v", 0 * g), g, momentum)
        move(w, direction(state["v"], g, momentum, nesterov), lr)

    return step


def _kept_gradient(w, g, state, lr, momentum=0.0, nesterov=False):
    v = state.setdefault("v", g)
    v.mul_(momentum).add_(g)
    w.sub_(lr * (g + momentum * v) if nesterov else lr * v)


momentum = Answers((_by_torch,), {
    "the gradient itself": Mistake("state keeps the gradient's own tensor, and the gradient changes with v: start with a "
        "copy, g.clone()", _kept_gradient),
    "new tensor": Mistake("the weights did not move: w -= … changes the tensor that was given, w = w - … makes a new "
        "one that nobody else sees", _sgd(move=lambda w, d, lr: None)),
    "uphill": Mistake("the step goes down: w ← w − lr v", _sgd(move=lambda w, d, lr: w.add_(lr * d))),
    "no learning rate": Mistake("the learning rate is missing", _sgd(move=lambda w, d, lr: w.sub_(d))),
    "no momentum": Mistake("the momentum has no effect: keep v in state, v ← m v + g", _sgd(lambda v, g, m: g)),
    "an average": Mistake("the gradient enters v whole, not times 1 − m: PyTorch adds gradients up, without averaging",
        _sgd(lambda v, g, m: m * v + (1 - m) * g)),
    "of the first": Mistake("v must change at every step: v ← m v + g", _sgd(lambda v, g, m: v if v.any() else g)),
    "always nesterov": Mistake("without nesterov the step is v itself", _sgd(direction=lambda v, g, m, nesterov: g + m * v)),
    "never nesterov": Mistake("the option nesterov has no effect: the step is then g + m v",
        _sgd(direction=lambda v, g, m, nesterov: v)),
    "half nesterov": Mistake("that is m v alone: Nesterov's step is g + m v",
        _sgd(direction=lambda v, g, m, nesterov: m * v if nesterov else v)),
    "twice the gradient": Mistake("that is g + v; Nesterov's step is g + m v",
        _sgd(direction=lambda v, g, m, nesterov: g + v if nesterov else v)),
})  # fmt: skip


@cache
def _linear_lr(n, epochs, start, per):
    optimizer = torch.optim.SGD([torch.zeros(())], lr=1.0)
    length, factors = (round(epochs * n) if per == "iteration" else epochs), []
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=length)
    for step in range(math.ceil(n * (epochs + 2))):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if per == "iteration" or (step + 1) % n == 0:
            schedule.step()
    return factors


def _warmup(
    iteration=lambda step, n: step / n, epoch=lambda step, n: step // n,
    rise=lambda share, start: start + (1 - start) * min(1.0, share), without=lambda start: 1.0,
):  # fmt: skip
    def factor(step, n, epochs, start, per="iteration"):
        return rise((iteration if per == "iteration" else epoch)(step, n) / epochs, start) if epochs else without(start)

    return factor


def _warmup_of(length):
    """With another number of iterations."""

    def factor(step, n, epochs, start, per="iteration"):
        if per == "epoch":
            return _warmup()(step, n, epochs, start, per)
        iterations = length(n, epochs)
        return start + (1 - start) * min(1.0, step / iterations) if iterations > 0 else 1.0

    return factor


def _by_linear_lr(step, n, epochs, start, per="iteration"):
    return _linear_lr(n, epochs, start, per)[step] if epochs else 1.0


warmup = Answers((_by_linear_lr,), {
    "nothing": Mistake("return the factor, a number: is there a return?", lambda *_, per: None),
    "a step ahead": Mistake("you are a step ahead: step counts the iterations done before, so the first is 0",
        _warmup(lambda step, n: (step + 1) / n)),
    "an epoch ahead": Mistake("you are an epoch ahead: the first epoch has the starting factor",
        _warmup(epoch=lambda step, n: step // n + 1)),
    "always per iteration": Mistake("per epoch it stays the same for all steps of an epoch: count whole epochs, "
        "step // steps_per_epoch", _warmup(epoch=lambda step, n: step / n)),
    "always per epoch": Mistake("per iteration it rises at every step, not only when an epoch is over",
        _warmup(lambda step, n: step // n)),
    "no end": Mistake("after the warm-up it must stay 1: yours goes on rising",
        _warmup(rise=lambda share, start: start + (1 - start) * share)),
    "waits": Mistake("it rises from the first step on; yours stays at the starting factor until a line from 0 reaches it",
        _warmup(rise=lambda share, start: max(start, min(1.0, share)))),
    "whole epochs": Mistake("warmup_epochs may be a fraction, and yours takes only whole epochs of it",
        _warmup_of(lambda n, epochs: int(epochs) * n)),
    "a step short": Mistake("the factor is 1 after warmup_epochs · steps_per_epoch iterations; yours is 1 a step earlier",
        _warmup_of(lambda n, epochs: epochs * n - 1)),
    "falls back": Mistake("after the warm-up it must stay 1: yours falls back",
        _warmup(rise=lambda share, start: start + (1 - start) * share if share < 1 else start)),
    "from zero": Mistake("it should rise from the starting factor, not from 0",
        _warmup(rise=lambda share, start: min(1.0, share))),
    "geometric": Mistake("it rises by a constant amount, not by a constant factor",
        _warmup(rise=lambda share, start: start ** (1 - min(1.0, share)))),
    "in steps": Mistake("the warm-up lasts warmup_epochs · steps_per_epoch iterations, not warmup_epochs of them",
        _warmup(lambda step, n: step, lambda step, n: step)),
    "divides by zero": Mistake("without warm-up (warmup_epochs = 0) yours divides by zero; the factor is 1",
        _warmup(without=lambda start: 1 / 0)),
    "none starts low": Mistake("without warm-up (warmup_epochs = 0) the factor is 1 from the first step",
        _warmup(without=lambda start: start)),
})  # fmt: skip


def _rates(low, high, n):
    return [low * (high / low) ** (i / (n - 1)) for i in range(n)]


def _test(
    limit=4.0, first=False, finite=True, groups=slice(None), clears=True, late=False, restarts=True, keeps=True,
    chosen=lambda rates, losses, best: rates[best] / 10,
):  # fmt: skip
    def lr_range_test(model, optimizer, batches, loss_fn, rates):
        losses, best, source = [], 0, iter(batches)
        for place, rate in enumerate(rates):
            batch = next(source, None)
            if batch is None:
                if not restarts:
                    break
                source = iter(batches)
                batch = next(source)
            for group in optimizer.param_groups[groups]:
                group["lr"] = rates[place - 1] if late and place else rate
            loss = loss_fn(model(batch[0]), batch[1])
            if clears:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.item()
            lost = value > limit * losses[0 if first else best] if losses else False
            if lost or (finite and not math.isfinite(value)):
                losses += [value] if keeps else []
                break
            losses.append(value)
            best = place if value < losses[best] else best
        return losses, chosen(rates, losses, best)

    return lr_range_test


range_test = Answers((_rates, _test()), {
    "no rates": Mistake("return a list from learning_rates: is there a return?", lambda *_: None, None),
    "linear": Mistake("the learning rates grow by a constant amount, so that nearly all are large",
        lambda low, high, n: [low + i * (high - low) / (n - 1) for i in range(n)], None),
    "n ratios": Mistake("the last learning rate is not the highest: with n of them there are n − 1 ratios between them",
        lambda low, high, n: _rates(low, high, n + 1)[:-1], None),
    "n + 1": Mistake("that is one learning rate too many", lambda low, high, n: _rates(low, high, n + 1), None),
    "turned": Mistake("the first learning rate is the lowest and the last the highest, not the other way round",
        lambda low, high, n: _rates(high, low, n), None),
    "logs": Mistake("those are the logarithms of the learning rates",
        lambda *ends: list(map(math.log, _rates(*ends))), None),
    "no pair": Mistake("return the pair (losses, chosen) from lr_range_test: is there a return?",
        None, lambda model, optimizer, batches, loss_fn, rates: None),
    "against the first": Mistake("compare with the lowest loss so far, not with the first", None, _test(first=True)),
    "nan passes": Mistake("comparisons with nan are False: ask math.isfinite", None, _test(finite=False)),
    "without the last": Mistake("the diverged loss is the last entry of the losses", None, _test(keeps=False)),
    "no stop": Mistake("stop after the first loss that is not finite or more than 4 times the lowest",
        None, _test(limit=math.inf, finite=False)),
    "one epoch": Mistake("begin again with the first batch where there are more learning rates than batches",
        None, _test(restarts=False)),
    "first group": Mistake("set the learning rate in every parameter group", None, _test(groups=slice(1))),
    "never set": Mistake("set the learning rate of every group before the step: group['lr'] = …",
        None, _test(groups=slice(0))),
    "gradients pile up": Mistake("the gradients of earlier steps are still there: call optimizer.zero_grad()",
        None, _test(clears=False)),
    "late": Mistake("each step uses the learning rate of the step before: set it before the step",
        None, _test(late=True)),
    "no tenth": Mistake("there the loss is about to turn; take a tenth",
        None, _test(chosen=lambda rates, losses, best: rates[best])),
    "a tenth of the loss": Mistake("that is a tenth of the loss, not of the learning rate",
        None, _test(chosen=lambda rates, losses, best: losses[best] / 10)),
    "the last": Mistake("that is a tenth of the last learning rate; take the one with the lowest loss",
        None, _test(chosen=lambda rates, losses, best: rates[len(losses) - 1] / 10)),
})  # fmt: skip


def _relative(
    kept=lambda w: w.detach().clone(), counts=lambda w: w.dim() > 1,
    ratio=lambda w, old, g, lr: (w - old).norm() / old.norm(), clears=True, moves=True, result=list,
):  # fmt: skip
    def relative_steps(model, optimizer, images, labels, loss_fn):
        weights = [w for w in model.parameters() if counts(w)]
        before = [kept(w) for w in weights]
        if clears:
            optimizer.zero_grad()
        loss_fn(model(images), labels).backward()
        if moves:
            optimizer.step()
        lr = optimizer.param_groups[0]["lr"]
        return result(float(ratio(w.detach(), old, w.grad, lr)) for w, old in zip(weights, before, strict=True))

    return relative_steps


relative = Answers((_relative(),), {
    "nothing": Mistake("return a list: is there a return?", _relative(result=lambda steps: list(steps) and None)),
    "no copy": Mistake("the old weights have changed with the new ones, as the step is in place: keep a copy, "
        "w.detach().clone()", _relative(kept=lambda w: w.detach())),
    "no step": Mistake("the weights did not move: call optimizer.step()", _relative(moves=False)),
    "new norm": Mistake("divide by the norm of the weights before the step, not after it",
        _relative(ratio=lambda w, old, g, lr: (w - old).norm() / w.norm())),
    "not relative": Mistake("those are the lengths ‖Δw‖: divide each by ‖w‖",
        _relative(ratio=lambda w, old, g, lr: (w - old).norm())),
    "difference of norms": Mistake("that compares ‖w‖ before and after; ‖Δw‖ is the norm of the difference",
        _relative(ratio=lambda w, old, g, lr: (w.norm() - old.norm()).abs() / old.norm())),
    "entry by entry": Mistake("you divide entry by entry; divide the norm of Δw by the norm of w",
        _relative(ratio=lambda w, old, g, lr: ((w - old) / old).norm())),
    "no root": Mistake("a norm is the root of the sum of squares: yours has no root",
        _relative(ratio=lambda w, old, g, lr: (w - old).square().sum() / old.square().sum())),
    "gradient": Mistake("that is ‖g‖ / ‖w‖; the optimiser makes a step of the gradient, which is Δw",
        _relative(ratio=lambda w, old, g, lr: g.norm() / old.norm())),
    "one number": Mistake("return a number for each tensor, in a list", _relative(result=sum)),
    "biases too": Mistake("leave biases out: only parameters of more than one dimension", _relative(counts=lambda w: True)),
    "gradients pile up": Mistake("the gradients of an earlier step are still there: call optimizer.zero_grad()",
        _relative(clears=False)),
    "by hand": Mistake("lr · g is SGD's step alone: compare the weights before and after the step",
        _relative(ratio=lambda w, old, g, lr: lr * g.norm() / old.norm())),
})  # fmt: skip


def _adams(
    m=lambda m, g, b: b * m + (1 - b) * g, v=lambda v, g, b: b * v + (1 - b) * g * g,
    m_hat=lambda m, b, t: m / (1 - b**t), v_hat=lambda v, b, t: v / (1 - b**t),
    quotient=lambda m, v, eps: m / (v.sqrt() + eps), turned=False, count=1,
    adamw=lambda w, u, d: u + d * w, ratio=lambda w, u: w.norm() / u.norm(), lamb=lambda w, u, d: u + d * w,
):  # fmt: skip
    def direction(g, state, betas=(0.9, 0.999), eps=1e-8):
        b1, b2 = reversed(betas) if turned else betas
        state["t"] = state.get("t", count - 1) + 1
        state["m"], state["v"] = m(state.get("m", 0 * g), g, b1), v(state.get("v", 0 * g), g, b2)
        return quotient(m_hat(state["m"], b1, state["t"]), v_hat(state["v"], b2, state["t"]), eps)

    def adamw_step(w, g, state, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        w.sub_(lr * adamw(w, direction(g, state, betas, eps), weight_decay))

    def lamb_step(w, g, state, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        u = lamb(w, direction(g, state, betas, eps), weight_decay)
        w.sub_(lr * ratio(w, u) * u)

    return direction, adamw_step, lamb_step


def _adamw_by_torch(w, g, state, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    if not state:
        state["optimizer"] = torch.optim.AdamW([w], lr, betas, eps, weight_decay)
    w.grad = g
    state["optimizer"].step()


_DIRECTION, _, _LAMB = _adams()


def _corrected_kept(g, state, betas=(0.9, 0.999), eps=1e-8):
    t = state["t"] = state.get("t", 0) + 1
    for name, new, b in (("m", g, betas[0]), ("v", g * g, betas[1])):
        state[name] = (b * state.get(name, 0) + (1 - b) * new) / (1 - b**t)
    return state["m"] / (state["v"].sqrt() + eps)


def _adamw_by_defaults(w, g, state, lr, betas, eps, weight_decay):
    w.sub_(lr * (_DIRECTION(g, state) + weight_decay * w))


def _lamb_by_defaults(w, g, state, lr, betas, eps, weight_decay):
    u = _DIRECTION(g, state) + weight_decay * w
    w.sub_(lr * w.norm() / u.norm() * u)


def _lamb_twice(w, g, state, lr, betas, eps, weight_decay):
    _DIRECTION(g, state, betas, eps)
    _LAMB(w, g, state, lr, betas, eps, weight_decay)


adam = Answers((_DIRECTION, _adamw_by_torch, _LAMB), {
    "nothing": Mistake("return the direction, a tensor: is there a return?", lambda *_, **__: None, None, None),
    "no bias of m": Mistake("the corrected m̂ is m/(1 − β1ᵗ): without the correction the first direction is ten times too short",
        *_adams(m_hat=lambda m, b, t: m)),
    "no bias of v": Mistake("the corrected v̂ is v/(1 − β2ᵗ): without the correction the first direction is far too long",
        *_adams(v_hat=lambda v, b, t: v)),
    "no bias": Mistake("both averages start at 0 and are too small at first: divide them by 1 − βᵗ",
        *_adams(m_hat=lambda m, b, t: m, v_hat=lambda v, b, t: v)),
    "t from 0": Mistake("the first step is t = 1: with t = 0 the correction divides by 0", *_adams(count=0)),
    "t from 2": Mistake("the first step is t = 1; yours begins at 2", *_adams(count=2)),
    "t stays": Mistake("the number t counts the steps, and yours stays 1", *_adams(
        m_hat=lambda m, b, t: m / (1 - b), v_hat=lambda v, b, t: v / (1 - b))),
    "a norm": Mistake("the average v is a number for each weight, of g * g; yours is one for the whole tensor, which is NovoGrad",
        *_adams(v=lambda v, g, b: b * v + (1 - b) * (g * g).sum())),
    "nothing kept": Mistake("the averages start anew at every step: keep m and v in state",
        *_adams(lambda m, g, b: (1 - b) * g, lambda v, g, b: (1 - b) * g * g)),
    "corrected kept": Mistake("keep m and v as they are in state; yours keeps the corrected ones, m̂ and v̂, and corrects "
        "them again", _corrected_kept, lambda w, g, state, lr, betas, eps, weight_decay: w.sub_(
            lr * (_corrected_kept(g, state, betas, eps) + weight_decay * w)),
        lambda w, g, state, lr, betas, eps, weight_decay: w.sub_(
            lr * w.norm() * (u := _corrected_kept(g, state, betas, eps) + weight_decay * w) / u.norm())),
    "sums": Mistake("the averages weigh what is new by 1 − β", *_adams(lambda m, g, b: b * m + g)),
    "no root": Mistake("divide by √v̂ + eps; yours divides by v̂ + eps", *_adams(quotient=lambda m, v, e: m / (v + e))),
    "eps in the root": Mistake("add eps to the root, √v̂ + eps, and not under it",
        *_adams(quotient=lambda m, v, e: m / (v + e).sqrt())),
    "no eps": Mistake("the eps is missing: divide by √v̂ + eps", *_adams(quotient=lambda m, v, e: m / v.sqrt())),
    "betas turned": Mistake("the betas are (β1, β2): the first is the momentum's, the second v's", *_adams(turned=True)),
    "new weights": Mistake("the weights did not move: w -= … changes the tensor that was given, w = w - … makes a new "
        "one that nobody else sees", None, *[lambda *_, **__: None] * 2),
    "defaults": Mistake("hand betas and eps on to adam_direction; yours takes its defaults",
        None, _adamw_by_defaults, _lamb_by_defaults),
    "decay in the gradient": Mistake("the decay is added to the gradient there, which is Adam with an L2 penalty; AdamW "
        "adds it to the direction, after the division", None, lambda w, g, state, lr, betas, eps, weight_decay: w.sub_(
            lr * _DIRECTION(g + weight_decay * w, state, betas, eps)), None),
    "direction twice": Mistake("each call of adam_direction is a step of m, v and t: call it once in lamb_step",
        None, None, _lamb_twice),
    "no decay": Mistake("the option weight_decay has no effect",
        None, *_adams(adamw=lambda w, u, d: u, lamb=lambda w, u, d: u)[1:]),
    "decay's sign": Mistake("the decay pulls towards 0: add weight_decay * w to the direction",
        None, *_adams(adamw=lambda w, u, d: u - d * w, lamb=lambda w, u, d: u - d * w)[1:]),
    "decay at the full rate": Mistake("the decay is multiplied by lr, too: w ← w − lr (direction + weight_decay w)",
        None, lambda w, g, state, lr, betas, eps, weight_decay: w.copy_(
            w * (1 - weight_decay) - lr * _DIRECTION(g, state, betas, eps)), None),
    "no ratio": Mistake("that is AdamW's step; LAMB multiplies it by ‖w‖/‖u‖", None, None, _adams(ratio=lambda w, u: 1)[2]),
    "ratio upside down": Mistake("the ratio is ‖w‖/‖u‖, not ‖u‖/‖w‖",
        None, None, _adams(ratio=lambda w, u: u.norm() / w.norm())[2]),
    "weights' norm alone": Mistake("divide by ‖u‖: the step is then lr ‖w‖ long",
        None, None, _adams(ratio=lambda w, u: w.norm())[2]),
    "decay outside": Mistake("the bracket u holds the decay: the ratio is of the whole bracket and multiplies the whole bracket",
        None, None, lambda w, g, state, lr, betas, eps, weight_decay: w.sub_(lr * (
            (u := _DIRECTION(g, state, betas, eps)) * (w.norm() / u.norm()) + weight_decay * w))),
})  # fmt: skip


_SETTINGS = "lr", "betas", "eps", "weight_decay", "grad_averaging"


def _optimizer(step, elsewhere=False, group_of=lambda self, group: group):
    """`step`, a function of lists, as an optimiser that keeps its state where PyTorch saves it; or elsewhere."""

    class Handmade(torch.optim.Optimizer):
        def __init__(self, params, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=True):
            settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
            super().__init__(params, settings | {"grad_averaging": grad_averaging})
            self.elsewhere = {}

        @torch.no_grad()
        def step(self, closure=None):
            used = [w for group in self.param_groups for w in group["params"] if w.grad is not None]
            for group in self.param_groups:
                options = {name: group_of(self, group)[name] for name in _SETTINGS}
                for w in group["params"]:
                    if w.grad is not None:
                        kept = self.elsewhere.setdefault(w, {}) if elsewhere else self.state[w]
                        step([w], [w.grad], kept, **options, everybody=[each.grad for each in used])

    return Handmade


_PIECES = {
    "g": lambda s: s.g,
    "norm": lambda s: s.g.square().sum(),
    "v": lambda s: s.norm if s.old is None else s.b2 * s.old + (1 - s.b2) * s.norm,
    "unit": lambda s: s.g / (s.v.sqrt() + s.eps),
    "share": lambda s: 1 - s.b1 if s.averaging else 1,
    "bracket": lambda s: s.unit + s.d * s.w,
    "m": lambda s: s.b1 * s.m + s.share * s.bracket,
    "move": lambda s: s.w.sub_(s.lr * s.m),
}


def _step(turned=False, **pieces):
    """The algorithm with other pieces; `s` holds what there is so far."""

    def step(weights, gradients, state, lr, betas, eps, weight_decay, grad_averaging, everybody):
        s = SimpleNamespace(lr=lr, eps=eps, d=weight_decay, averaging=grad_averaging, gradients=everybody)
        s.b1, s.b2 = reversed(betas) if turned else betas
        s.t = state["t"] = state.get("t", 0) + 1
        for s.w, s.g in zip(weights, gradients, strict=True):
            s.old, s.m = state.get("v"), state.get("m", 0)
            for name, piece in (_PIECES | pieces).items():
                setattr(s, name, piece(s))
            state["v"], state["m"] = s.v, s.m

    return step


def _made(turned=False, **pieces):
    return _optimizer(_step(turned, **pieces))


novograd = Answers((NovoGrad,), {
    "new tensors": Mistake("the weights did not move: change the tensors that were given, in place, w -= lr * m; "
        "w = w - lr * m and weights[i] = … make new ones, and the model still has the old", _made(move=lambda s: 0)),
    "element-wise": Mistake("take one number a layer for v, the squared norm of the whole tensor; yours is one for "
        "each weight, which is Adam", _made(norm=lambda s: s.g.square())),
    "one norm": Mistake("each layer has a v of its own; you took the norm over all layers together",
        _made(norm=lambda s: sum(g.square().sum() for g in s.gradients))),
    "mean": Mistake("take the sum of the squares, ‖g‖², for v; yours is their mean",
        _made(norm=lambda s: s.g.square().mean())),
    "zero start": Mistake("start v at ‖g₁‖², the first gradient's own; from 0 it would be 50 times too small at "
        "first, and the step 7 times too long", _made(v=lambda s: (1 - s.b2) * s.norm + s.b2 * (s.old or 0))),
    "bias of v": Mistake("start v at ‖g₁‖², with no bias correction; starting at 0 and correcting gives other "
        "weights to the steps", _made(v=lambda s: (1 - s.b2) * s.norm + s.b2 * (s.old or 0),
            unit=lambda s: s.g / ((s.v / (1 - s.b2**s.t)).sqrt() + s.eps))),
    "bias of m": Mistake("NovoGrad does not correct m's bias: leave out the division by 1 − β1ᵗ",
        _made(move=lambda s: s.w.sub_(s.lr * s.m / (1 - s.b1**s.t)))),
    "old v": Mistake("divide by the new v, the one that has just taken in this gradient",
        _made(unit=lambda s: s.g / ((s.v if s.old is None else s.old).sqrt() + s.eps))),
    "v not kept": Mistake("keep v in state, as a running average: v ← β2 v + (1 − β2) ‖g‖²", _made(v=lambda s: s.norm)),
    "norm": Mistake("average the squared norms in v, and take the root afterwards",
        _made(norm=lambda s: s.g.norm(), unit=lambda s: s.g / (s.v + s.eps))),
    "no root": Mistake("divide by √v + eps; yours divides by v", _made(unit=lambda s: s.g / (s.v + s.eps))),
    "eps in the root": Mistake("add eps to the root, √v + eps, and not under it",
        _made(unit=lambda s: s.g / (s.v + s.eps).sqrt())),
    "no eps": Mistake("the eps is missing: divide by √v + eps", _made(unit=lambda s: s.g / s.v.sqrt())),
    "no division": Mistake("the gradient is not divided by √v + eps: that is plain momentum",
        _made(unit=lambda s: s.g)),
    "late division": Mistake("the gradient is divided before it enters m; yours collects raw gradients in m and "
        "divides m", _made(unit=lambda s: s.g, move=lambda s: s.w.sub_(s.lr * s.m / (s.v.sqrt() + s.eps)))),
    "forgets": Mistake("yours forgets the earlier steps: m ← β1 m + …", _made(m=lambda s: s.share * s.bracket)),
    "betas turned": Mistake("the betas are (β1, β2): the first is the momentum's, the second v's", _made(turned=True)),
    "upwards": Mistake("the step goes down: w ← w − lr m", _made(move=lambda s: s.w.add_(s.lr * s.m))),
    "state elsewhere": Mistake("after state_dict() and load_state_dict() it begins anew: keep v and m in "
        "self.state[w], which PyTorch saves, and nowhere else", _optimizer(_step(), elsewhere=True)),
    "defaults": Mistake("each parameter group has settings of its own: read them from group, not from self.defaults",
        _optimizer(_step(), group_of=lambda self, group: self.defaults)),
    "no decay": Mistake("the option weight_decay has no effect: m ← β1 m + (g/(√v + eps) + d w)",
        _made(bracket=lambda s: s.unit)),
    "decay in the norm": Mistake("the decay d·w is added after the division (“decoupled”); yours is in the gradient, "
        "and so is divided too", _made(g=lambda s: s.g + s.d * s.w, bracket=lambda s: s.unit)),
    "decay divided": Mistake("the decay d·w is added after the division by √v + eps; yours is divided, too",
        _made(bracket=lambda s: (s.g + s.d * s.w) / (s.v.sqrt() + s.eps))),
    "decay after the step": Mistake("the decay d·w enters m, beside the normalised gradient; yours shrinks the weights "
        "after the step", _made(bracket=lambda s: s.unit, move=lambda s: s.w.sub_(s.lr * s.m).mul_(1 - s.lr * s.d))),
    "first weight alone": Mistake("only the first weight moved: is there a return inside the loop?",
        _made(move=lambda s: s.w.sub_(s.lr * s.m) if s.g is s.gradients[0] else s.w)),
    "decay twice": Mistake("the decay is in the gradient and in the bracket", _made(g=lambda s: s.g + s.d * s.w)),
    "decay of the weights": Mistake("the decay enters m; yours shrinks the weights outside of it, as AdamW does",
        _made(bracket=lambda s: s.unit, move=lambda s: s.w.mul_(1 - s.lr * s.d).sub_(s.lr * s.m))),
    "decay's sign": Mistake("the decay pulls towards 0: add d·w to the bracket",
        _made(bracket=lambda s: s.unit - s.d * s.w)),
    "no averaging": Mistake("the option grad_averaging has no effect: it multiplies the bracket by 1 − β1",
        _made(share=lambda s: 1)),
    "always averaging": Mistake("without grad_averaging the bracket enters m whole; yours is multiplied by 1 − β1",
        _made(share=lambda s: 1 - s.b1)),
    "averaged later": Mistake("the factor 1 − β1 of grad_averaging belongs to the first step too; yours takes it "
        "whole", _made(share=lambda s: 1 - s.b1 if s.averaging and s.t > 1 else 1)),
    "decay not averaged": Mistake("the factor 1 − β1 of grad_averaging belongs to the decay, too",
        _made(bracket=lambda s: s.unit + s.d * s.w / s.share)),
})  # fmt: skip


def _steps_of(
    start=lambda m: m / m.norm(), a=3.4445, b=-4.7750, c=2.0315, gram=lambda x: x @ x.T, square=lambda s: s @ s, fewer=0,
):  # fmt: skip
    def orthogonalise(matrix, steps=5):
        x = start(matrix)
        for _ in range(steps - fewer):
            s = gram(x)
            x = a * x + (b * s + c * square(s)) @ x
        return x

    return orthogonalise


def _not_back(matrix, steps=5):
    x = _steps_of()(matrix, steps)
    return x.T if matrix.size(0) > matrix.size(1) else x


def _polar(matrix, steps=5):
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return u @ v


def _again(matrix, steps=5):
    for _ in range(steps):
        matrix = _steps_of()(matrix, 1)
    return matrix


muon = Answers((_steps_of(),), {
    "nothing": Mistake("return the matrix: is there a return?", lambda *_: None),
    "not normalised": Mistake("divide the matrix by its norm first: the steps converge only for singular values up to "
        "about 1", _steps_of(start=lambda m: m)),
    "largest entry": Mistake("divide by the norm of the whole matrix (Frobenius), not by its largest entry",
        _steps_of(start=lambda m: m / m.abs().max())),
    "spectral": Mistake("divide by the Frobenius norm, m.norm(), which costs nothing; yours is the spectral norm",
        _steps_of(start=lambda m: m / torch.linalg.matrix_norm(m, 2))),
    "always five": Mistake("the number of steps is an argument, and yours always takes 5",
        lambda matrix, steps=5: _steps_of()(matrix)),
    "normalised again": Mistake("divide by the norm once, before the first step", _again),
    "one step less": Mistake("that is one step less", _steps_of(fewer=1)),
    "one step more": Mistake("that is one step more", _steps_of(fewer=-1)),
    "cubic": Mistake("the last term is missing: c (X Xᵀ)² X", _steps_of(c=0.0)),
    "element-wise": Mistake("(X Xᵀ)² is a matrix product, S @ S, and not S * S", _steps_of(square=lambda s: s * s)),
    "sign": Mistake("b is negative: −4.7750", _steps_of(b=4.7750)),
    "exact": Mistake("that is the exact polar factor; so many Newton–Schulz steps are asked for, which need no SVD",
        _polar),
    "not back": Mistake("a tall matrix comes back turned: transpose it again at the end", _not_back),
})  # fmt: skip

ANSWERS = {
    "momentum": momentum, "warmup": warmup, "range-test": range_test, "relative-steps": relative, "adam": adam,
    "novograd": novograd, "muon": muon,
}  # fmt: skip
