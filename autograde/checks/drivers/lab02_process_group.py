# Driver of lab 02's process group, in a file of its own: other exercises shall not find its all-gather.
def process_group(student, given, outside):
    returned = student("start_process_group")("gloo")
    if not dist.is_initialized():
        return {"returned": returned, "numbers": None}
    return {"returned": returned, "numbers": gather(given["number"])}


def gather(number):
    """What every rank brought, in the order of ranks."""
    places = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(places, torch.tensor([number], dtype=torch.float64))
    return [place.item() for place in places]
