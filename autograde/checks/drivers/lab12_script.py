# Driver of lab 12's script: `steps` is a stand-in, whose worker only tells who is there and what it was given.
import sys
import types


def script(student, given, outside):
    source = student("script")
    if not isinstance(source, str):
        return {"source": source}
    calls, finished = [], []
    joined = on_pretended_gpus(given["gpus"])

    def open_run(args):
        if dist.get_rank() != 0:
            return None
        return types.SimpleNamespace(token=given["token"] + 1, finish=lambda stopped: finished.append(stopped))

    def worker(args, run=None):
        call = {"numbers": None, "token": getattr(args, "token", None), "run": getattr(run, "token", None)}
        calls.append(call)
        if dist.is_initialized():
            places = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
            dist.all_gather(places, torch.tensor([given["number"]], dtype=torch.float64))
            call["numbers"] = [place.item() for place in places]
        return {"stopped": given["stopped"], "accuracies": [], "time": 0.0}

    steps = types.ModuleType("steps")
    steps.__dict__.update({name: value for name, value in student.namespace.items() if not name.startswith("_")})
    steps.parse_arguments = lambda argv=None: types.SimpleNamespace(token=given["token"], output_dir="run")
    steps.open_run, steps.worker = open_run, worker
    sys.modules["steps"] = steps
    sys.argv = ["assessment.py"]
    try:
        exec(compile(source, "assessment.py", "exec"), {"__name__": "__main__", "__file__": "assessment.py"})
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    left = not dist.is_initialized()
    if not left:
        dist.destroy_process_group()  # the script is run once more
    return {"calls": calls, "finished": finished, "left": left, "joined": joined}
