"""A process group whose collectives the grader combines and counts (`collective_broker`): for ranks without a network.

DistributedDataParallel trains on it. The source is sent to the sandbox, beside `observe`.
"""

import torch
import torch.distributed as dist

from course_lib.exercises.ranks.broker_process_group import BrokerProcessGroup, Work, grader_group, moved


class CollectiveWork(Work, dist._Work):
    """A collective that this rank has joined; its tensors are there when it has been waited for."""

    def __init__(self, number, places, outside):
        super().__init__()
        self.number, self.places, self.outside, self.done = number, places, outside, False

    def is_completed(self):
        if self.done:
            return True
        ended = moved(self.outside("result", self.number))
        if ended is None:
            return False
        with torch.no_grad():
            for place, tensor in zip(self.places, ended, strict=False):
                if place.numel() != tensor.numel() or place.dtype != tensor.dtype:
                    raise RuntimeError("the ranks bring tensors of different shapes or types to a collective")
                place.copy_(tensor.view(place.shape))
        self.done = True
        return True

    def is_success(self):
        return self.done

    def get_future(self):
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.places)
        return future


class CollectiveProcessGroup(BrokerProcessGroup):
    """Messages, and the collectives of the labs."""

    def getBackendName(self):
        return "by_the_grader"

    def new_group(self, ranks, timeout=None, pg_options=None, group_name=None, group_desc=None):
        """What `dist.new_group` calls; None for a rank that is no member."""
        moved(self.outside("group", list(ranks)))
        if self.rank() not in ranks:
            return None
        made = CollectiveProcessGroup(list(ranks).index(self.rank()), len(ranks), self.outside)
        made.members = list(ranks)
        made._set_group_name(str(group_name))
        return made

    def enter(self, kind, brought, places, root=-1, operation=""):
        brought = [tensor.detach().contiguous() for tensor in brought]
        if self.members is None:
            number = self.outside("join", kind, root, operation, brought)
        else:
            number = self.outside("join_group", self.members, kind, root, operation, brought)
        return CollectiveWork(moved(number), places, self.outside)

    def allreduce(self, tensors, options=None):
        tensors = tensors if isinstance(tensors, list | tuple) else [tensors]
        return self.enter("allreduce", tensors, tensors, operation=operation_of(options))

    def allreduce_coalesced(self, tensors, options=None):
        return self.allreduce(tensors, options)

    def broadcast(self, tensors, options):
        tensors = tensors if isinstance(tensors, list | tuple) else [tensors]
        return self.enter("broadcast", tensors if self.rank() == options.rootRank else [], tensors, options.rootRank)

    def reduce(self, tensors, options):
        places = tensors if self.rank() == options.rootRank else []
        return self.enter("reduce", tensors, places, options.rootRank, operation_of(options))

    def allgather(self, outputs, inputs, options=None):
        return self.enter("allgather", inputs, outputs[0])

    def all_gather_single(self, output, tensor, options=None):
        return self.enter("allgather", [tensor], list(output.view(-1).chunk(self.size())))

    _allgather_base = all_gather_single

    def gather(self, outputs, inputs, options):
        return self.enter("gather", inputs, outputs[0] if self.rank() == options.rootRank else [], options.rootRank)

    def scatter(self, outputs, inputs, options):
        brought = inputs[0] if self.rank() == options.rootRank else []
        return self.enter("scatter", brought, outputs, options.rootRank)

    def reduce_scatter(self, outputs, inputs, options=None):
        return self.enter("reducescatter", inputs[0], outputs, operation=operation_of(options))

    def reduce_scatter_single(self, output, tensor, options=None):
        return self.reduce_scatter([output], [list(tensor.view(-1).chunk(self.size()))], options)

    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts=None):
        return self.enter("barrier", [], [])


def operation_of(options):
    """The name of a reduction; DistributedDataParallel gives none, and means the sum."""
    known = ("SUM", "AVG", "MAX", "MIN", "PRODUCT")
    return next((name for name in known if options and options.reduceOp == getattr(dist.ReduceOp, name)), "SUM")


def collective_group(rank, size, outside):
    """The process group of a rank while its answer is called: a context."""
    return grader_group(rank, size, outside, CollectiveProcessGroup)
