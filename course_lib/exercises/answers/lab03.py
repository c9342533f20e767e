"""Lab 03's answers, right and wrong. The gradient norms on ranks are judged without a reference."""

from __future__ import annotations

import copy
import math
import statistics

import numpy as np

from course_lib.exercises.description import Answers, Mistake
from course_lib.metrics.student_t import t_limit
from course_lib.optim import gradient_noise_scale, linear_scaling, sqrt_scaling, steps_needed

__all__ = ["ANSWERS"]


def _train(
    clear=True,
    mode=True,
    begin_again=True,
    epochs=lambda n: n,
    when="after",
    kept=lambda losses: losses,
    more=0,
    late=None,
    look="after",
    ends=bool,
    shown=list,
):
    def train_steps(model, batches, steps, optimizer, schedule, loss_fn, device, watch=None):
        model.train(mode)
        losses, epoch = [], 0
        while len(losses) < steps + more and (begin_again or not epoch):
            if epochs(epoch) is not None:
                batches.set_epoch(epochs(epoch))
            for images, labels in batches:
                loss = loss_fn(model(images.to(device)), labels.to(device))
                if clear:
                    optimizer.zero_grad()
                loss.backward()
                if watch is not None and look == "before" and ends(watch(shown([*losses, loss.item()]))):
                    return kept([*losses, loss.item()])
                optimizer.step()
                if schedule is not None and when == "after":
                    schedule.step()
                if late:
                    loss = loss_fn(late(model)(images), labels)
                losses.append(loss.item())
                if watch is not None and look == "after" and ends(watch(shown(losses))):
                    return kept(losses)
                if len(losses) == steps + more:
                    break
            if schedule is not None and when == "pass":
                schedule.step()
            epoch += 1
        return kept(losses)

    return train_steps


def _rates(linear=linear_scaling, sqrt=sqrt_scaling, none=lambda base, k: base, k=lambda b, reference: b / reference):
    rules = {"linear": linear, "sqrt": sqrt, "none": none}
    return lambda base, batch, reference, rule: rules[rule](base, k(batch, reference))


def _degrees(e, f, n, m):
    return (e**2 + f**2) ** 2 / (e**4 / (n - 1) + f**4 / (m - 1))


def _runs(
    limit=lambda e, f, s, t, n, m: t_limit(_degrees(e, f, n, m)) * math.hypot(e, f), size=abs,
    mean=statistics.mean, spread=statistics.stdev, error=lambda spread, n: spread / math.sqrt(n),
):  # fmt: skip
    """Both functions; `limit` on the `size` of a difference is of the errors e, f, the deviations s, t, the runs n, m."""

    def summarise(values):
        return mean(values), spread(values), error(spread(values), len(values))

    def distinguishable(first, second):
        (a, s, e), (b, t, f) = summarise(first), summarise(second)
        if e == f == 0:
            return a != b
        return size(a - b) > limit(e, f, s, t, len(first), len(second))

    return summarise, distinguishable


def _limit_of(degrees, error=math.hypot):
    return _runs(lambda e, f, s, t, n, m: t_limit(degrees(e, f, n, m)) * error(e, f))[1]


def _norms(
    change=lambda G2, tr, *_: (G2, tr), scale=lambda G2, tr: tr / G2 if G2 > 0 else math.inf, mean=statistics.mean
):
    """`change` gives other |G|² and tr Σ, of the right ones, the batches b < B and the mean squared norms s, t."""

    def noise_scale(b, B, small, big):
        known = b, B, mean(small), mean(big)
        right = gradient_noise_scale(*known)
        found = change(right.squared_gradient, right.covariance_trace, *known)
        return *found, scale(*found)

    return noise_scale


def _mean_of_quotients(b, B, small, big):
    single = [gradient_noise_scale(b, B, s, t) for s, t in zip(small, big, strict=True)]
    mean = statistics.mean(one.covariance_trace / one.squared_gradient for one in single)
    return _norms(scale=lambda G2, tr: mean if G2 > 0 else math.inf)(b, B, small, big)


def _least_squares(S, E):
    return np.linalg.lstsq(np.stack([1 / S, 1 / E], axis=1), np.ones(len(S)), rcond=None)[0]


def _absolute(S, E):
    images, steps = np.polyfit(S / E, S, 1)
    return steps, images


def _two_points(S, E):
    ends = [0, -1]
    return _least_squares(S[ends], E[ends])


def _curve(
    fit=_least_squares, quotient=lambda s, e: e / s, refuse=lambda s, e: s <= 0 or e <= 0, give=lambda *found: found
):
    def critical_batch(steps, images):
        s, e = map(float, fit(np.array(steps, dtype=float), np.array(images, dtype=float)))
        if refuse(s, e):
            raise ValueError("no such curve")
        return give(s, e, quotient(s, e))

    return critical_batch


def _steps(batch, scale, known_batch, known_steps):
    return known_steps * steps_needed(batch, scale, 1) / steps_needed(known_batch, scale, 1)


def _race(
    reached=lambda losses, target, window: len(losses) >= window and statistics.mean(losses[-window:]) <= target,
    watch=lambda reached: reached, end=lambda losses, arrived: len(losses) if arrived else math.nan,
):  # fmt: skip
    def steps_to_loss(train, target, window):
        def at_target(losses):
            return reached(list(map(float, losses)), target, window)

        losses = train(watch(at_target))
        return end(losses, at_target(losses))

    return steps_to_loss


def _race_afterwards(train, target, window):
    losses = train(lambda losses: False)
    ends = [n for n in range(window, len(losses) + 1) if statistics.mean(losses[n - window : n]) <= target]
    return ends[0] if ends else math.nan


def _fastest(pick=min, known=lambda steps: not math.isnan(steps), row=lambda b, lr, s: (lr, s, b * s), order=sorted):
    def fastest(trials):
        times = {}
        for batch, lr, steps in trials:
            if known(steps):
                times.setdefault(batch, []).append((steps, lr))
        best = {batch: pick(times[batch]) for batch in order(times)}
        return {batch: row(batch, lr, steps) for batch, (steps, lr) in best.items()}

    return fastest


def _whole(values):
    return all(map(math.isfinite, values))


def _search(
    score=statistics.mean, runs=lambda values: values if _whole(values) else [], pick=max,
    edge=lambda lr, tried, kept: lr in (min(tried), max(tried)), give=lambda lr, edge: (lr, edge),
):  # fmt: skip
    def choose_lr(results):
        kept = {lr: score(runs(values)) for lr, values in results.items() if runs(values)}
        lr = pick(sorted(kept), key=kept.get)
        return give(lr, edge(lr, list(results), list(kept)))

    return choose_lr


def _max_with_nan(results):
    means = {lr: math.fsum(values) / len(values) for lr, values in results.items()}
    lr = max(means, key=means.get)
    return lr, lr in (min(means), max(means))


_DIVERGED = "a learning rate with a diverged run is out, however good its other runs are"
_MEANS = "the mean of n runs varies √n times less than one run"
_ONE_RUN = f"that is one run's standard deviation; {_MEANS}"
_WELCH = "ν = (e₁² + e₂²)² / (e₁⁴/(n₁ − 1) + e₂⁴/(n₂ − 1))"
_LOST = "where |G|² comes out below 0, so few images cannot tell the gradient from 0: return float('inf') for B_simple"
_CURVE = "S_min is the coefficient of 1/S, E_min that of 1/E"

# Of two mistakes with one decision, the one that decides fewer pairs wrongly is the first.
ANSWERS = {
    "training": Answers((_train(), _rates()), {
        "gradients kept": Mistake("the gradients of earlier steps are still there: clear them in every step",
            _train(clear=False), None),
        "evaluation mode": Mistake("the model is in evaluation mode; model.train() comes first", _train(mode=False), None),
        "one pass": Mistake("it ends with the batches; begin them again until all steps are done",
            _train(begin_again=False), None),
        "no set_epoch": Mistake("the loop does not call set_epoch: every pass would have the same order",
            _train(epochs=lambda n: None), None),
        "epochs from 1": Mistake("the first pass is epoch 0", _train(epochs=lambda n: n + 1), None),
        "always epoch 0": Mistake("every pass is epoch 0; the second one is epoch 1", _train(epochs=lambda n: 0), None),
        "one step more": Mistake("that is one step too many: stop as soon as `steps` updates are done", _train(more=1), None),
        "schedule per pass": Mistake("the schedule advances once per pass; it should after every update",
            _train(when="pass"), None),
        "schedule never": Mistake("the schedule does not advance; call schedule.step() after every update",
            _train(when="never"), None),
        "loss after": Mistake("that is the loss after the update; the one before it was asked for", _train(late=copy.deepcopy), None),
        "second forward pass": Mistake("the loss is computed again after the update: keep the first one. A second forward "
            "pass in training mode also changes the statistics of batch norm", _train(late=lambda model: model), None),
        "watch not called": Mistake("watch is never called", _train(look="never"), None),
        "watch goes on": Mistake("the training continues where watch has returned True", _train(ends=lambda wish: False), None),
        "watch before the update": Mistake("watch is called before the update; it should be after it", _train(look="before"), None),
        "latest loss watched": Mistake("watch is given the latest loss alone; it should be the list of all so far",
            _train(shown=lambda losses: losses[-1]), None),
        "last loss": Mistake("return the losses of all steps, a list", _train(kept=lambda losses: losses[-1]), None),
        "no reference": Mistake("the factor is batch / reference", None, _rates(k=lambda b, reference: b)),
        "upside down": Mistake("that is divided: a larger batch takes fewer steps, so each must be longer",
            None, _rates(k=lambda b, reference: reference / b)),
        "linear by the root": Mistake("that is rule 'sqrt'", None, _rates(linear=sqrt_scaling)),
        "sqrt as linear": Mistake("that is rule 'linear'", None, _rates(sqrt=linear_scaling)),
        "none scales": Mistake("that is rule 'linear'", None, _rates(none=linear_scaling)),
        "whole factors": Mistake("the factor is batch / reference; // cuts it to a whole number", None,
            _rates(lambda base, k: base * k, lambda base, k: base * k**0.5, k=lambda b, reference: b // reference)),
        "never below": Mistake("a smaller batch has a smaller learning rate", None, _rates(lambda base, k: base * max(k, 1))),
    }),
    "comparison": Answers(_runs(), {
        "two numbers": Mistake("return (mean, standard deviation, standard error)",
            lambda values: _runs()[0](values)[:2], None),
        "n": Mistake("that is divided by n. The distances are from the runs' own mean, which is too close to them; "
            "n − 1 makes up for it (numpy: ddof=1)", *_runs(spread=statistics.pstdev)),
        "variance": Mistake("that is the variance; take its root", _runs(spread=statistics.variance)[0], None),
        "range": Mistake("that is the range; it grows with n", _runs(spread=lambda x: max(x) - min(x))[0], None),
        "error over n": Mistake(f"that is divided by n; {_MEANS}", _runs(error=lambda s, n: s / n)[0], None),
        "median": Mistake("that is the median", _runs(mean=statistics.median)[0], None),
        "largest": Mistake("that is the largest value, not the mean", _runs(mean=max)[0], None),
        "signed": Mistake("the sign of the difference does not matter (abs)", None, _runs(size=float)[1]),
        "fewer degrees": Mistake(f"the degrees of freedom are Welch's, {_WELCH}; n − 1 of the smaller list has too few", None,
            _limit_of(lambda e, f, n, m: min(n, m) - 1)),
        "pooled degrees": Mistake(f"the degrees of freedom are Welch's, {_WELCH}; n₁ + n₂ − 2 holds where both vary alike",
            None, _limit_of(lambda e, f, n, m: n + m - 2)),
        "twice": Mistake("“twice the error” is for many runs; with so few t_limit(ν) is larger", None,
            _runs(lambda e, f, *_: 2 * math.hypot(e, f))[1]),
        "sum": Mistake("the errors add as squares, √(e₁² + e₂²)", None, _limit_of(_degrees, lambda e, f: e + f)),
        "one error": Mistake("both means are uncertain: √(e₁² + e₂²)", None, _limit_of(_degrees, lambda e, f: e)),
        "no root of n": Mistake(_ONE_RUN, *_runs(error=lambda s, n: s)),
        "deviations": Mistake(_ONE_RUN, None, _runs(
            lambda e, f, s, t, n, m: t_limit(_degrees(e, f, n, m)) * math.hypot(s, t))[1]),
        "not t": Mistake("the limit is t_limit(ν) times the difference's standard error", None,
            _runs(lambda e, f, *_: math.hypot(e, f))[1]),
        "fixed": Mistake("what counts depends on the runs' standard errors", None, _runs(lambda *_: 0.03)[1]),
        "never": Mistake("it is False for every pair", None, lambda first, second: False),
        "always": Mistake("it is True for every pair", None, lambda first, second: True),
        "turned": Mistake("that is turned: True where the two can be told apart", None,
            lambda first, second: not _runs()[1](first, second)),
    }),
    "gradient-norms": Answers(),
    "noise-scale": Answers((_norms(),), {
        "one number": Mistake("return three numbers, (|G|², tr Σ, B_simple)", lambda *_: 150.0),
        "biased signal": Mistake("that is |G_B|² as measured, which still holds tr Σ / B of noise; "
            "(B·|G_B|² − b·|G_b|²) / (B − b)", _norms(lambda G2, tr, b, B, s, t: (t, tr))),
        "swapped": Mistake("the batches are swapped", _norms(lambda G2, tr, b, B, s, t: ((B * s - b * t) / (B - b), tr))),
        "root": Mistake("that is |G|; its square is asked for", _norms(lambda G2, tr, *_: (max(0, G2) ** 0.5, tr))),
        "turned sign": Mistake("a variance is not negative: |G_b|² − |G_B|²", _norms(lambda G2, tr, *_: (G2, -tr))),
        "no denominator": Mistake("divide that by 1/b − 1/B", _norms(lambda G2, tr, b, B, s, t: (G2, s - t))),
        "only the first": Mistake("take the mean over all measurements", _norms(mean=lambda norms: norms[0])),
        "mean of quotients": Mistake("that is the mean of the measurements' quotients, which is biased upward; average "
            "|G|² and tr Σ first, then divide", _mean_of_quotients),
        "turned": Mistake("it is turned: tr Σ / |G|²", _norms(scale=lambda G2, tr: G2 / tr if G2 > 0 else math.inf)),
        "negative scale": Mistake(f"{_LOST}, not a negative number", _norms(scale=lambda G2, tr: tr / G2)),
        "zero": Mistake(_LOST, _norms(scale=lambda G2, tr: tr / G2 if G2 > 0 else 0.0)),
    }),
    "critical-batch": Answers((_race(), _fastest(), _curve(), _steps), {
        "goes on": Mistake("give train a function that returns True at the target, and call train once",
            _race_afterwards, None, None, None),
        "short window": Mistake("there are fewer than `window` losses yet, so there is no such mean",
            _race(lambda losses, target, window: statistics.mean(losses[-window:]) <= target), None, None, None),
        "one loss": Mistake("a single loss is at the target there; the mean of the latest `window` losses counts",
            _race(lambda losses, target, window: losses[-1] <= target), None, None, None),
        "mean of all": Mistake("that is the mean of all losses; the latest `window` ones count",
            _race(lambda losses, target, window: len(losses) >= window and statistics.mean(losses) <= target), None, None, None),
        "index": Mistake("that is the last loss's place in the list, counted from 0; the first step is step 1",
            _race(end=lambda losses, arrived: len(losses) - 1 if arrived else math.nan), None, None, None),
        "never is the last step": Mistake("where the training ends above the target, return nan",
            _race(end=lambda losses, arrived: len(losses)), None, None, None),
        "slowest": Mistake("those are the most steps", None, _fastest(pick=max), None, None),
        "nan kept": Mistake("a batch size that never reached the target has no entry",
            None, _fastest(known=lambda steps: True), None, None),
        "as they came": Mistake("the batch sizes are not in rising order", None, _fastest(order=list), None, None),
        "no learning rate": Mistake("the values are (learning rate, steps, images)",
            None, _fastest(row=lambda b, lr, s: (s, b * s)), None, None),
        "steps for images": Mistake("images are steps times batch size", None, _fastest(row=lambda b, lr, s: (lr, s, s)), None, None),
        "lowest rate": Mistake("that is the smallest learning rate of each batch size; the fewest steps count",
            None, _fastest(pick=lambda times: min(times, key=lambda pair: pair[1])), None, None),
        "two numbers": Mistake("return three numbers, (S_min, E_min, B_crit)", None, None, _curve(give=lambda s, e, b: (s, e)), None),
        "swapped": Mistake(f"S_min and E_min are swapped: {_CURVE}", None, None, _curve(give=lambda s, e, b: (e, s, b)), None),
        "smallest measured": Mistake("those are the fewest steps and images measured; the curve comes close to S_min and "
            "E_min and never reaches them", None, None,
            _curve(lambda S, E: (S.min(), E.min())), None),
        "absolute errors": Mistake("that fits S = S_min + E_min/B, in which the longest training decides alone; divided by "
            "S it is S_min/S + E_min/E = 1", None, None, _curve(_absolute), None),
        "two points": Mistake("that is the curve through the first and the last point; let all of them count",
            None, None, _curve(_two_points), None),
        "turned": Mistake("it is turned: B_crit = E_min/S_min", None, None, _curve(quotient=lambda s, e: s / e), None),
        "middle batch": Mistake("a batch size is images per step: B_crit = E_min/S_min", None, None, _curve(quotient=lambda s, e: e), None),
        "not refused": Mistake("it returns numbers where the fit is no curve", None, None, _curve(refuse=lambda s, e: False), None),
        "known steps for the fewest": Mistake("that takes known_steps for S_min; first S_min from the known point, "
            "known_steps / (1 + B_crit/known_batch)", None, None, None, lambda B, scale, _, steps: steps_needed(B, scale, steps)),
        "halves for ever": Mistake("twice the batch, half the steps: that holds far below B_crit only",
            None, None, None, lambda B, scale, b, steps: steps * b / B),
        "rounded": Mistake("do not round: a float is asked for", None, None, None, lambda *known: math.ceil(_steps(*known))),
        "upside down": Mistake("larger batches need fewer steps", None, None, None, lambda B, n, b, steps: _steps(b, n, B, steps)),
        "images": Mistake("the images grow so, not the steps", None, None, None, lambda B, n, b, steps: steps * (n + B) / (n + b)),
    }),
    "search": Answers((_search(),), {
        "one number": Mistake("return the pair (learning rate, whether it is at the edge)", _search(give=lambda lr, edge: lr)),
        "best run": Mistake("that has the best single run; the best mean was asked for", _search(score=max)),
        "median": Mistake("that has the best median; the best mean was asked for", _search(score=statistics.median)),
        "worst": Mistake("that is the worst one", _search(pick=min)),
        "accuracy": Mistake("that is the accuracy; the learning rate was asked for",
            lambda results: (max(map(statistics.mean, filter(_whole, results.values()))), _search()(results)[1])),
        "nan left out": Mistake(_DIVERGED,
            _search(runs=lambda values: [value for value in values if math.isfinite(value)])),
        "nan compared": Mistake(_DIVERGED, _max_with_nan),
        "edge of the survivors": Mistake("a neighbour whose run diverged was tried, too: the grid reaches beyond the best",
            _search(edge=lambda lr, tried, kept: lr in (min(kept), max(kept)))),
        "edge as entered": Mistake("that is the first or last entry; the smallest or largest learning rate was asked for",
            _search(edge=lambda lr, tried, kept: lr in (tried[0], tried[-1]))),
        "upper edge alone": Mistake("the lower end of the grid is an edge, too",
            _search(edge=lambda lr, tried, kept: lr == max(tried))),
        "never": Mistake("it is False even where the best is the smallest or the largest learning rate that was tried",
            _search(edge=lambda lr, tried, kept: False)),
        "always": Mistake("it is True even where smaller and larger learning rates were tried",
            _search(edge=lambda lr, tried, kept: True)),
        "turned": Mistake("it is turned: True where the best is at the edge",
            _search(edge=lambda lr, tried, kept: min(tried) < lr < max(tried))),
    }),
}  # fmt: skip
