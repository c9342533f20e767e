"""Lab 08: what the ranks of the program send. A common start, the average of the models, the numbers for rank 0."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from course_lib.exercises.comparing import equal, finite, is_number
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.mpi_broker import MPIBroker
from course_lib.exercises.ranks.mpi_comm import mpi_comm
from course_lib.exercises.ranks.mpi_ranks import on_mpi

__all__ = ["AVERAGING", "REDUCE", "START"]

SMALL = 256  # bytes of a message that carries a number or two

# --- networks on ranks


def _state(random, inputs, hidden, classes, counter):
    def normal(*shape):
        return torch.from_numpy(random.normal(0, 1, shape)).float()

    spread = torch.from_numpy(random.uniform(0.5, 2, hidden)).float()
    norm = [1 + 0.2 * normal(hidden), normal(hidden), normal(hidden), spread, torch.tensor(counter)]
    return [normal(hidden, inputs), normal(hidden), *norm, normal(classes, hidden), normal(classes)]


def _states(random, ranks, counters):
    sizes = [int(n) for n in random.integers(8, 13, 3)]
    return [_state(random, *sizes, counter) for counter in counters[:ranks]]


def network(state):
    """A network with a batch norm between its two layers; `state` are its tensors in order."""
    hidden, inputs = state[0].shape
    model = nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, len(state[-1]))
    )
    for tensor, value in zip(model.state_dict().values(), state, strict=True):
        tensor.copy_(value)
    return model


def tensors_of(model):
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def _ends(seen):
    return [one["state"] for one in seen["ranks"]]


def _same(one, other, tolerance=1e-4):
    return equal([each.float() for each in one], [each.float() for each in other], tolerance)


def _parameters(state):
    """Without the batch norm's statistics."""
    return [*state[:4], *state[7:]]


def _numbers(state):
    return sum(tensor.numel() for tensor in state)


def _counted(seen):
    """The calls that carried data, in words."""
    calls = [f"comm.{name} ({max(nbytes):,} bytes)" for name, _, _, nbytes in seen["calls"] if name != "Barrier"]
    return ", then ".join(calls[:4]) + (", …" if len(calls) > 4 else "") if calls else "no collective"


# --- pack, unpack, broadcast_state


def _draw_starts(random):
    states = _states(random, 3, [int(n) for n in random.choice(900, 3, replace=False) + 50])
    about = f"3 ranks, each with a network of {_numbers(states[0])} numbers of its own"
    return {"ranks": [{"states": states, "about": about}]}


def observe_start(case, rank, outside, pack, unpack, broadcast_state):
    model, other, buffer = network(case["state"]), network([torch.zeros_like(t) for t in case["state"]]), None
    fraction = network(case["state"])
    with mpi_comm(rank, case["size"], outside) as comm:
        packed_state = pack(network(case["state"]))
        if isinstance(packed_state, np.ndarray):
            buffer = torch.from_numpy(packed_state.copy()) if packed_state.dtype.kind in "fiu" else None
            unpack(other, packed_state.copy())
            unpack(fraction, packed_state.copy() + np.float32(0.75))
        held = list(model.parameters())
        broadcast_state(comm, model)
    kept = all(one is before for one, before in zip(model.parameters(), held, strict=True))
    return {
        "buffer": buffer,
        "copied": tensors_of(other),
        "fraction": tensors_of(fraction),
        "state": tensors_of(model),
        "kept": kept,
    }


_NO_BUFFER = "your pack does not return a NumPy array of one dimension"


def _packs(case, seen, right):
    for one, state in zip(seen["ranks"], case["states"], strict=True):
        buffer = one["buffer"]
        if not isinstance(buffer, torch.Tensor) or buffer.dim() != 1:
            return _NO_BUFFER
        if buffer.dtype is not torch.float32:
            return "your pack returns numbers of another type than float32"
        if buffer.numel() == _numbers(_parameters(state)):
            return "your pack leaves out the buffers: model.state_dict() has the batch norm's statistics, model.parameters() has not"
        if not equal(buffer.sort().values, torch.cat([t.flatten().float() for t in state]).sort().values):
            return "your pack does not return each number of the state dict once"
        if _same(one["copied"], [torch.zeros_like(t) for t in state]):
            return "your unpack leaves the model as it was: tensor.copy_(…) writes into a tensor of the state dict"
        if not _same(one["copied"], state):
            return "your unpack does not write back what pack has taken: the same tensors, in the same order"
        counters = [[t for t in some if not t.is_floating_point()] for some in (one["fraction"], state)]
        if not equal(counters[0], [t + 1 for t in counters[1]]):
            return (
                "your unpack cuts the fraction of a number off, for a whole-number tensor: 4.75 becomes 5, by round()"
            )
    return ""


def _alike(case, seen, right):
    ends = _ends(seen)
    if not all(one["kept"] for one in seen["ranks"]):
        return "the model has other parameter objects than before, which no optimiser knows: copy into them"
    if all(_same(end, ends[0]) for end in ends):
        carried = sum(max(nbytes) for *_, nbytes in seen["calls"]) + sum(seen["sent"])
        return (
            "" if carried >= 4 * _numbers(ends[0]) else "the models are equal, but fewer bytes than they have were sent"
        )
    if all(_same(end, state) for end, state in zip(ends, case["states"], strict=True)):
        return "every rank still has its own model: is the received buffer written into it by unpack?"
    if all(_same(_parameters(end), _parameters(ends[0])) for end in ends):
        return "the parameters are equal, the batch norm's statistics are not"
    return "some ranks have other weights than rank 0"


def _of_rank_0(case, seen, right):
    end = _ends(seen)[0]
    if _same(end, case["states"][0]):
        return ""
    if any(_same(end, state) for state in case["states"][1:]):
        return "every rank has another rank's model: root 0 was asked for"
    return "the ranks end with a model that is not rank 0's"


def _one_bcast(case, seen, right):
    calls = [call for call in seen["calls"] if call[0] != "Barrier"]
    if any(seen["sent"]) or [name for name, *_ in calls if name != "Bcast"]:
        lower = [name for name, *_ in calls if name == "bcast"]
        why = "comm.bcast pickles; comm.Bcast sends the memory of an array" if lower else "one comm.Bcast is enough"
        return f"other calls than comm.Bcast carry the model: {why}"
    if len(calls) != 1:
        return "it broadcasts more than once: one message for the whole model"
    whole = 4 * _numbers(case["states"][0])
    return "" if max(calls[0][3]) == whole else "the message has another number of bytes than 4 per number"


START = Exercise(("pack", "unpack", "broadcast_state"), _draw_starts, observe_start, {
    "buffer": Part("All numbers of a model in one array, and back", _NO_BUFFER, cases="ranks", judge=_packs,
                   hint="pack nn.BatchNorm1d(2), and count its numbers by hand: five tensors"),
    "equal": Part("All ranks have equal models", cases="ranks", judge=_alike),
    "root": Part("They are rank 0's", cases="ranks", needs="equal", judge=_of_rank_0),
    "message": Part("One message", cases="ranks", needs="equal", judge=_one_bcast),
}, "run it on two ranks with mpi_launch, and print the sum of a layer's weights on each",
    lambda case, seen: f"{case['about']}: you called {_counted(seen)}",
    share=lambda case, rank: {"state": case["states"][rank], "size": len(case["states"])},
    **on_mpi(3, lambda case: MPIBroker(3)))  # fmt: skip

# --- average_models


def _draw_averages(random):
    def case(samples):
        counter = int(random.integers(100, 900))
        states = _states(random, len(samples), [counter] * len(samples))
        about = f"{len(samples)} ranks with {', '.join(map(str, samples))} samples, {_numbers(states[0])} numbers each"
        return {"states": states, "samples": samples, "about": about}

    alike = int(random.integers(20, 60))
    return {
        "alike": [case([alike] * 4)],
        "unequal": [case([int(n) for n in random.permutation([7, 31, 90]) + random.integers(0, 6, 3)])],
    }


def packed_model(model):
    """A stand-in for `pack`."""
    return torch.cat([tensor.flatten().float() for tensor in model.state_dict().values()]).numpy()


def unpacked_model(model, buffer):
    """A stand-in for `unpack`."""
    state = list(model.state_dict().values())
    parts = torch.from_numpy(np.asarray(buffer, dtype=np.float32)).split([tensor.numel() for tensor in state])
    for tensor, part in zip(state, parts, strict=True):
        tensor.copy_(part.view_as(tensor) if tensor.is_floating_point() else part.view_as(tensor).round())


def observe_average(case, rank, outside, average_models):
    names = getattr(average_models, "__globals__", {})
    names["pack"], names["unpack"] = packed_model, unpacked_model  # what is wrong in that exercise costs nothing here
    model = network(case["state"])
    held = list(model.parameters())
    with mpi_comm(rank, case["size"], outside) as comm:
        average_models(comm, model, case["samples"])
    kept = all(one is before for one, before in zip(model.parameters(), held, strict=True))
    return {"state": tensors_of(model), "kept": kept}


def _mean(case, weights):
    total = sum(weights)
    return [
        sum(n * t.double() for n, t in zip(weights, each, strict=True)) / total
        for each in zip(*case["states"], strict=True)
    ]


_NOT_MEAN = "rank 0's model does not hold the mean of the ranks' models"


def _is_mean(case, seen, right):
    end, mean = _ends(seen)[0], _mean(case, case["samples"])
    if not [call for call in seen["calls"] if call[0] != "Barrier"] and not any(seen["sent"]):
        return "nothing was sent: under MPI each rank has memory of its own"
    if _same(end, mean):
        return ""
    if _same(end, case["states"][0]):
        return "rank 0's model is as it was: unpack(model, …) writes the mean into it"
    if _same(_parameters(end), _parameters(mean)):
        return "the parameters are averaged, the batch norm's statistics are not"
    if _same(_parameters(end), [len(case["samples"]) * each for each in _parameters(mean)]):
        return "rank 0 holds a sum, not yet divided"
    if _same(_parameters(end), [case["samples"][0] * each for each in _parameters(mean)]):
        return "the sum is divided by the number of ranks; Σ n·w is divided by Σ n"
    return _NOT_MEAN


def _everywhere(case, seen, right):
    mean = _mean(case, case["samples"])
    if not all(one["kept"] for one in seen["ranks"]):
        return "the model has other parameter objects than before, which no optimiser knows: copy into them"
    if all(_same(end, mean) for end in _ends(seen)):
        return ""
    return "not every rank ends with the mean: a Reduce gives the sum to its root alone, an Allreduce to all"


def _weighted(case, seen, right):
    end = _ends(seen)[0]
    if _same(end, _mean(case, case["samples"])):
        return ""
    if _same(end, _mean(case, [1] * len(case["samples"]))):
        return "every rank counts alike: weigh each model by its samples, Σ n·w / Σ n"
    samples = case["samples"]
    own = sum(samples) / (samples[0] * len(samples))
    if _same(_parameters(end), [own * each for each in _parameters(_mean(case, samples))]):
        return "the sum is divided by rank 0's own samples; Σ n·w is divided by Σ n, a sum over the ranks"
    return "with unequal samples rank 0's model is not the weighted mean"


def _one_buffer(case, seen, right):
    if any(seen["sent"]):
        return "models are sent from rank to rank: one comm.Allreduce of the whole buffer is enough"
    large = [call for call in seen["calls"] if max(call[3], default=0) > SMALL]
    if [name for name, *_ in large if name[:1].islower()]:
        return "the model is pickled by a lower-case call: comm.Allreduce sends the memory of the array"
    if [name for name, *_ in large if name != "Allreduce"]:
        return "the model passes through other calls than comm.Allreduce"
    data = [call for call in seen["calls"] if call[0] == "Allreduce"]
    whole = 4 * _numbers(case["states"][0])
    if len(seen["calls"]) > 3:
        return "it sends several messages: one for the whole model, not one for each tensor, and at most one for the samples"
    if sum(max(call[3]) for call in data) > whole + SMALL:
        return "the message has more than 4 bytes per number: send float32, as pack returns it"
    return "" if data else "the model is not sent by comm.Allreduce"


AVERAGING = Exercise(("average_models",), _draw_averages, observe_average, {
    "mean": Part("Rank 0 holds the mean of the models", _NOT_MEAN, cases="alike", judge=_is_mean),
    "everywhere": Part("So does every rank", cases="alike", needs="mean", judge=_everywhere),
    "weights": Part("Models count by their samples", cases="unequal", needs="mean", judge=_weighted,
                    hint="take two ranks, 10 and 30 samples, and write the mean of one weight down by hand"),
    "one-buffer": Part("One buffer carries the whole model", cases="alike", needs="mean", judge=_one_buffer,
                       hint="count the calls of comm, and their bytes, for a model of six tensors"),
}, "run it on three ranks with mpi_launch, and print the sum of a layer's weights on each",
    lambda case, seen: f"{case['about']}: you called {_counted(seen)}", share=lambda case, rank: {
        "state": case["states"][rank], "samples": case["samples"][rank], "size": len(case["states"]),
    },
    **on_mpi(4, lambda case: MPIBroker(len(case["states"])), lambda case: len(case["states"])))  # fmt: skip

# --- reduce_results


def _draw_results(random):
    # Rank 0 is neither the slowest nor the fastest, so that its own time is no answer.
    seconds = [float(s) for s in random.uniform([3, 6, 1], [4, 9, 2])]
    counts = [int(n) for n in random.permutation([40, 200, 900]) + random.integers(0, 30, 3)]
    correct = [int(n * share) for n, share in zip(counts, random.permutation([0.2, 0.55, 0.9]), strict=True)]
    losses = [float(s) for s in random.uniform(0.2, 2.5, 3) * counts]
    ranks = [list(row) for row in zip(losses, correct, counts, seconds, strict=True)]
    about = "; ".join(
        f"rank {n}: loss sum {loss:.3f}, {right} of {count} right, {time:.3f} s"
        for n, (loss, right, count, time) in enumerate(ranks)
    )
    return {"ranks": [{"ranks": ranks, "about": about}]}


def observe_results(case, rank, outside, reduce_results):
    loss_sum, correct, images, seconds = case["own"]
    with mpi_comm(rank, case["size"], outside) as comm:
        found = reduce_results(comm, loss_sum, correct, images, seconds)
    found = list(found) if isinstance(found, tuple | list) and len(found) <= 10 else found
    return {"found": found, "none": found is None}


_NO_RESULT = "on rank 0 it should return (mean loss, accuracy, seconds)"


def _number(seen, place):
    found = seen["ranks"][0]["found"]
    return finite(found[place]) if isinstance(found, list) and len(found) == 3 and is_number(found[place]) else None


def _columns(case):
    return [list(column) for column in zip(*case["ranks"], strict=True)]


def _explained(value, right, what, wrong):
    if value is None:
        return _NO_RESULT
    if equal(value, float(right), 2e-5):
        return ""
    why = next((why for why, other in wrong.items() if equal(value, float(other), 2e-5)), "")
    return f"the {what} is wrong" + (f": {why}" if why else "")


def _accuracy(case, seen, right):
    losses, correct, counts, _ = _columns(case)
    of_ranks = [c / n for c, n in zip(correct, counts, strict=True)]
    return _explained(_number(seen, 1), sum(correct) / sum(counts), "accuracy", {
        "it is the mean of the ranks' accuracies; sum the counts over the ranks, then divide": sum(of_ranks) / len(of_ranks),
        "it is a rank's own accuracy": of_ranks[0],
        "it is a count, not a share": sum(correct),
        "it is divided by a rank's own images": sum(correct) / counts[0],
    }) or _explained(_number(seen, 0), sum(losses) / sum(counts), "mean loss", {
        "it is a sum of losses, not the mean over images": sum(losses),
        "it is a rank's own mean loss": losses[0] / counts[0],
        "it is the mean of the ranks' mean losses": sum(s / n for s, n in zip(losses, counts, strict=True)) / len(counts),
    })  # fmt: skip


def _slowest(case, seen, right):
    *_, seconds = _columns(case)
    return _explained(_number(seen, 2), max(seconds), "number of seconds", {
        "it is rank 0's own time; the slowest rank's was asked for (MPI.MAX)": seconds[0],
        "it is the sum of the ranks' times; the ranks train at the same time (MPI.MAX)": sum(seconds),
        "it is the mean of the ranks' times (MPI.MAX)": sum(seconds) / len(seconds),
        "it is the fastest rank's": min(seconds),
    })  # fmt: skip


def _root_alone(case, seen, right):
    if any(_number(seen, place) is None for place in range(3)):
        return _NO_RESULT
    if all(one["none"] is True for one in seen["ranks"][1:]):
        return ""
    return "another rank than 0 returns something: a Reduce leaves the sum on its root, the others return None"


REDUCE = Exercise(("reduce_results",), _draw_results, observe_results, {
    "accuracy": Part("Mean loss and accuracy over all ranks' images", _NO_RESULT, cases="ranks", judge=_accuracy,
                     hint="take two ranks, 90 of 100 right and 6 of 20 right, and write the accuracy down by hand"),
    "slowest": Part("Seconds of the slowest rank", _NO_RESULT, cases="ranks", judge=_slowest),
    "root": Part("Rank 0 alone has them", _NO_RESULT, cases="ranks", judge=_root_alone),
}, "print what it returns on each of two ranks", "{about}",
    share=lambda case, rank: {"own": case["ranks"][rank], "size": len(case["ranks"])},
    **on_mpi(3, lambda case: MPIBroker(3)))  # fmt: skip
