# Driver of lab 02's script: `steps` is a stand-in, whose worker only tells who is there.
import sys
import types


def script(student, given, outside):
    source = student("script")
    if not isinstance(source, str):
        return {"source": source}
    calls = []

    def worker(args, *others):
        if not dist.is_initialized():
            calls.append({"numbers": None, "token": getattr(args, "token", None)})
            return
        places = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(places, torch.tensor([given["number"]], dtype=torch.float64))
        calls.append({"numbers": [place.item() for place in places], "token": getattr(args, "token", None)})

    joined = on_pretended_gpus(given["gpus"])

    def start_process_group(backend):
        dist.init_process_group(backend)
        return dist.get_rank()

    steps = types.ModuleType("steps")
    steps.__dict__.update({name: value for name, value in student.namespace.items() if not name.startswith("_")})
    steps.parse_arguments = lambda argv=None: types.SimpleNamespace(token=given["token"])
    steps.start_process_group, steps.worker = start_process_group, worker
    sys.modules["steps"] = steps
    sys.argv = ["train_ddp.py"]
    try:
        exec(compile(source, "train_ddp.py", "exec"), {"__name__": "__main__", "__file__": "train_ddp.py"})
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    left = not dist.is_initialized()
    if not left:
        dist.destroy_process_group()  # the script is run once more
    return {"calls": calls, "left": left, "joined": joined}
