"""Lab 13: right answers, and mistakes that have a name. Exercises on ranks have judges, which know both."""

from __future__ import annotations

import torch

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _ledger(
    of=lambda tensors: sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()),
    weights=lambda parameters: parameters,
    gradients=lambda parameters: [p.grad for p in parameters if p.grad is not None],
    state=lambda optimizer: [
        t for each in optimizer.state.values() for t in each.values() if isinstance(t, torch.Tensor)
    ],
):
    def ledger(parameters, optimizer):
        return {
            "parameters": of(weights(parameters)),
            "gradients": of(gradients(parameters)),
            "state": of(state(optimizer)),
        }

    return ledger


def _padded(shards, numbers, ranks):
    return torch.nn.functional.pad(torch.cat(list(shards))[:numbers], (0, -numbers % ranks)).chunk(ranks)


ANSWERS = {
    "ledger": Answers((_ledger(),), {
        "tensors": Mistake("memory that two tensors share counts twice, or a view counts wrongly: count each storage once, and whole",
            _ledger(of=lambda tensors: sum(t.untyped_storage().nbytes() for t in tensors))),
        "float32": Mistake("it takes 4 bytes for every number: bytes per number depend on the dtype",
            _ledger(of=lambda tensors: 4 * sum(t.untyped_storage().nbytes() // t.element_size() for t in
                                               {t.untyped_storage().data_ptr(): t for t in tensors}.values()))),
        "numbers": Mistake("these are numbers, not bytes",
            _ledger(of=lambda tensors: sum(t.untyped_storage().nbytes() // t.element_size() for t in
                                           {t.untyped_storage().data_ptr(): t for t in tensors}.values()))),
        "as large as weights": Mistake("the gradients are counted where there are none: p.grad may be None",
            _ledger(gradients=lambda parameters: [torch.empty_like(p) if p.grad is None else p.grad for p in parameters])),
        "without counters": Mistake("the counters of steps are missing; they are tensors of the state, too",
            _ledger(state=lambda optimizer: [t for each in optimizer.state.values() for t in each.values()
                                             if isinstance(t, torch.Tensor) and t.dim()])),
        "twice the weights": Mistake("the state is guessed as twice the weights; count what is in optimizer.state",
            _ledger(state=lambda optimizer: [torch.empty_like(p) for group in optimizer.param_groups
                                             for p in group["params"] for _ in "mv"])),
    }),
    "zero1": Answers(), "reduce-scatter": Answers(), "zero2": Answers(), "zero3": Answers(),
    "reshard": Answers((lambda shards, numbers, ranks, rank: _padded(shards, numbers, ranks)[rank].clone(),), {
        "padding stays": Mistake("the old padding is still in it: keep the first `numbers` numbers of the joined shards",
            lambda shards, numbers, ranks, rank: _padded(shards, sum(map(len, shards)), ranks)[rank].clone()),
        "no padding": Mistake("the last shard is shorter: all shards have one length, filled up by zeros",
            lambda shards, numbers, ranks, rank: torch.cat(list(shards))[:numbers].split(-(-numbers // ranks))[rank].clone()
            if rank < -(-numbers // -(-numbers // ranks)) else shards[0][:0]),
        "everything": Mistake("each rank gets everything; rank r gets part r",
            lambda shards, numbers, ranks, rank: torch.cat(list(shards))[:numbers].clone()),
        "the first": Mistake("every rank gets the first part",
            lambda shards, numbers, ranks, rank: _padded(shards, numbers, ranks)[0].clone()),
    }),
}  # fmt: skip
