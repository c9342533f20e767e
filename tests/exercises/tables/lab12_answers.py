"""Lab 12: other right answers, and what each mistake loses. Its judges name the mistakes, so there is no table of known ones."""

from answer_sources import Notebook

LOSES = {}
SAYS = {}

OURS = Notebook("12_assessment")
edited = OURS.edited

RIGHT = {
    "recipe": [
        """
def recipe(model, args, ranks, steps_per_epoch):  # AdamW, a straight line
    small = [p for p in model.parameters() if p.dim() == 1]
    large = [p for p in model.parameters() if p.dim() != 1]
    optimizer = torch.optim.AdamW([dict(params=small, weight_decay=0), dict(params=large)], lr=args.base_lr * ranks,
                                  weight_decay=args.weight_decay)
    total, warm = args.epochs * steps_per_epoch, args.warmup_epochs * steps_per_epoch

    def factor(step):
        if step < warm:
            return 0.1 + 0.9 * step / warm
        return max(0.0, (total - step) / (total - warm))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, [factor] * 2)
""",
        """
def recipe(model, args, ranks, steps_per_epoch):  # NovoGrad, PyTorch's own schedules
    named = list(model.named_parameters())
    optimizer = NovoGrad([{"params": [p for n, p in named if p.ndim > 1], "weight_decay": args.weight_decay},
                          {"params": [p for n, p in named if p.ndim < 2], "weight_decay": 0.0}], lr=ranks * args.base_lr)
    total, warm = args.epochs * steps_per_epoch, int(args.warmup_epochs * steps_per_epoch)
    fall = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total - warm)
    if not warm:
        return optimizer, fall
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, warm)
    return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warm])
""",
    ],
    "same": [
        """
def same_on_all_ranks(model):  # everything in one message, compared with rank 0's
    mine = torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])
    first = mine.clone()
    dist.broadcast(first, src=0)
    same = torch.tensor(int(torch.equal(first, mine)))
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    return same.item() == 1
""",
    ],
    "program": [
        edited("program", "sampler.set_epoch(epoch)", "sampler.set_epoch(epoch + 1)"),
        edited(
            "program",
            "    while len(records) < args.epochs and not stopped:\n        epoch = len(records)\n",
            "    for epoch in range(len(records), args.epochs if not stopped else 0):\n",
            "        stopped = reached(accuracies, args)\n        if rank == 0:",
            "        decision = torch.tensor(int(reached(accuracies, args)))\n        dist.broadcast(decision, src=0)\n"
            "        stopped = bool(decision)\n        if rank == 0:",
            "                assessment_print(STOP_LINE.format(row.epoch))\n",
            "                assessment_print(STOP_LINE.format(row.epoch))\n        if stopped:\n            break\n",
            "        torch.manual_seed((args.seed * 10_007 + epoch) * 10_007 + rank)\n",
            "        Checkpoint('unused', args.seed).seed_epoch(epoch + 1)\n",
        ),
        # Synchronised batch norm always has equal statistics; the rank's own test images as another share.
        edited(
            "program",
            "range(rank, len(test_set), ranks)",
            "range(len(test_set) * rank // ranks, len(test_set) * (rank + 1) // ranks)",
            "        for buffer in model.module.buffers():\n            dist.broadcast(buffer, src=0)\n",
            "        everything = [buffer.clone().double() for buffer in model.module.buffers()]\n"
            "        for buffer, whole in zip(model.module.buffers(), everything):\n"
            "            dist.all_reduce(whole)\n            buffer.copy_(whole / ranks)\n",
        ),
    ],
}

_RECIPE = "groups scaled warmup decay"
_WHOLE = "shares order randomness gradients rates evaluation metrics time transcript sync stop resumes"
_STEP = "            optimizer.zero_grad()\n            loss.backward()\n            optimizer.step()\n"
_SHARE = "        sampler.set_epoch(epoch)\n"
_REDUCED = "        dist.all_reduce(sums)\n"
_OF = {
    "recipe": {
        "unscaled": (edited("recipe", "ranks * args.base_lr", "args.base_lr"), "scaled", "does not grow with the number of ranks"),
        "by the square root": (edited("recipe", "ranks * args.base_lr", "ranks**0.5 * args.base_lr"), "scaled", "not ranks"),
        "all parameters decay": (edited("recipe", '"weight_decay": 0.0', '"weight_decay": args.weight_decay'), "groups", "their weight_decay is 0"),
        "nothing decays": (edited("recipe", '"weight_decay": args.weight_decay', '"weight_decay": 0.0'), "groups", "do not decay"),
        "no biases": (edited("recipe", '"weight_decay": args.weight_decay},\n              {"params": others, "weight_decay": 0.0}]',
                             '"weight_decay": args.weight_decay}]'), "groups", "all of the model's parameters"),
        "no warm-up": (edited("recipe", "        if step < warm:\n            return (step + 1) / (warm + 1)\n", "        if step < warm:\n            return 1.0\n"), "warmup", "a quarter"),
        "a warm-up of steps": (edited("recipe", "round(args.warmup_epochs * steps_per_epoch)", "round(args.warmup_epochs)"), "warmup", "warm-up"),
        "no fall": (edited("recipe", "0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / (total - warm))))", "1.0"), "decay", "above 5 %"),
        "a fall of epochs": (edited("recipe", "total = args.epochs * steps_per_epoch", "total = args.epochs * steps_per_epoch // 2"), "decay", "long before"),
        "the optimiser alone": (edited("recipe", "return optimizer, torch", "return torch"), _RECIPE, "LambdaLR"),
    },
    "same": {
        "hashes": ("""
import hashlib

def same_on_all_ranks(model):
    digest = hashlib.sha256()
    for value in [*model.parameters(), *model.buffers()]:
        digest.update(value.detach().cpu().numpy().tobytes())
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, digest.hexdigest())
    return len(set(every)) == 1
""", "weights", "does not notice"),
        "a sum": (
            "def same_on_all_ranks(model):\n"
            "    mine = torch.stack([v.double().sum() for v in [*model.parameters(), *model.buffers()]]).detach()\n"
            "    low, high = mine.clone(), mine.clone()\n"
            "    dist.all_reduce(low, op=dist.ReduceOp.MIN)\n    dist.all_reduce(high, op=dist.ReduceOp.MAX)\n"
            "    return torch.equal(low, high)\n",
            "weights", "a sum or a mean"),
        "parameters alone": (edited("same", "[*model.parameters(), *model.buffers()]", "model.parameters()"), "buffers", "does not notice"),
        "its own opinion": (
            "def same_on_all_ranks(model):\n"
            "    same = True\n"
            "    for value in [*model.parameters(), *model.buffers()]:\n"
            "        first = value.detach().clone()\n        dist.broadcast(first, src=0)\n"
            "        same = same and torch.equal(first, value)\n"
            "    return same\n",
            "weights buffers", "same answer"),
        "always equal": ("def same_on_all_ranks(model):\n    return True\n", "equal weights buffers", "does not notice"),
        "never equal": ("def same_on_all_ranks(model):\n    return False\n", "equal weights buffers", "equal models differ"),
        "the model is the sum": (edited("same", "lowest, highest = value.detach().double(), value.detach().double()", "lowest, highest = value.detach(), value.detach().clone()",
                                        "dist.all_reduce(lowest, op=dist.ReduceOp.MIN)", "dist.all_reduce(lowest)", "(lowest != highest)", "(lowest != 3 * highest)"),
                                 "equal weights buffers", "changes the model"),
    },
    "program": {
        "counts anew after a restart": (
            edited("program", "    while len(records) < args.epochs and not stopped:\n", "    restored = len(records)\n    while len(records) < args.epochs and not stopped:\n",
                   "sampler.set_epoch(epoch)", "sampler.set_epoch(epoch - restored)"), "resumes", ""),
        "seeds that meet": (edited("program", "(args.seed * 10_007 + epoch) * 10_007 + rank", "args.seed + epoch + rank"), "randomness", "in another epoch"),
        "the starter as it is": (
            "def main(args, run=None):\n    return dict(accuracies=train_single(args), stopped=False, time=0.0, same=True)\n",
            _WHOLE, "does not train"),
        "all images": (edited("program", "DistributedSampler(train_set, ranks, rank, seed=args.seed)", "DistributedSampler(train_set, 1, 0, seed=args.seed)"),
                       "shares resumes", "trains all images"),
        "the last batch dropped": (edited("program", "args.batch_size, sampler=sampler)", "args.batch_size, sampler=sampler, drop_last=True)"), "shares", "drop_last"),
        "no set_epoch": (edited("program", _SHARE, ""), "order resumes", "set_epoch"),
        "no augmentation": (edited("program", "prepare(images, data, device, AUGMENTATIONS[args.augmentation])", "prepare(images, data, device)"), "randomness", "not augmented"),
        "the same crops": (edited("program", " * 10_007 + rank)", " * 10_007)"), "randomness", "needs the rank"),
        "one seed": (edited("program", "        torch.manual_seed((args.seed * 10_007 + epoch) * 10_007 + rank)\n", "", "    torch.manual_seed(args.seed)\n", "    torch.manual_seed(args.seed + rank)\n"),
                     "randomness", "anew in each epoch"),
        "the bare model": (edited("program", "logits = model(images)", "logits = model.module(images)"), "gradients evaluation sync", "its own gradient"),
        "summed gradients": (edited("program", _STEP, _STEP.replace("            optimizer.step()", "            for parameter in model.parameters():\n                parameter.grad *= ranks\n            optimizer.step()")), "gradients sync", "summed"),
        "divided twice": (edited("program", _STEP, _STEP.replace("            optimizer.step()", "            for parameter in model.parameters():\n                parameter.grad /= ranks\n            optimizer.step()")), "gradients sync", "twice"),
        "no zero_grad": (edited("program", "            optimizer.zero_grad()\n", ""), "gradients sync", "zero_grad"),
        "no label smoothing": (edited("program", "label_smoothing=args.label_smoothing", "label_smoothing=0.0"), "gradients sync", "label smoothing"),
        "smoothed validation": (edited("program", "evaluate(model.module, batches, nn.CrossEntropyLoss())", "evaluate(model.module, batches, train_loss_fn)"), "metrics", "val_loss has label smoothing"),
        "an unscaled rate": (edited("program", "recipe(model, args, ranks, len(train_loader))", "recipe(model, args, 1, len(train_loader))"), "rates", "number of ranks"),
        "steps of all ranks": (edited("program", "len(train_loader))\n    train_loss", "len(train_set) // args.batch_size)\n    train_loss"), "rates", "len(train_loader)"),
        "a schedule of epochs": (edited("program", "            scheduler.step()\n", "", "        trained = sums.tolist()", "        scheduler.step()\n        trained = sums.tolist()"), "rates resumes", "for each batch"),
        "all evaluate everything": (edited("program", "Subset(test_set, range(rank, len(test_set), ranks))", "test_set"), "evaluation", "counts several times"),
        "a sampler for the test images": (edited("program", "Subset(test_set, range(rank, len(test_set), ranks)), 500", "test_set, 500, sampler=DistributedSampler(test_set, ranks, rank, shuffle=False)"), "evaluation metrics", "count twice"),
        "own statistics": (edited("program", "        for buffer in model.module.buffers():\n            dist.broadcast(buffer, src=0)\n", ""), "evaluation", "statistics"),
        "augmented test images": (edited("program", "(prepare(x, data, device), y", "(prepare(x, data, device, AUGMENTATIONS[args.augmentation]), y"), "evaluation", "augmented"),
        "rank 0 alone evaluates": (
            edited("program", "        validated = evaluate(model.module, batches, nn.CrossEntropyLoss())\n",
                   "        validated = evaluate(model.module, batches, nn.CrossEntropyLoss()) if rank == 0 else (0.0, 0, 0)\n"),
            "evaluation metrics stop resumes", "some rank evaluates nothing"),
        "an average of averages": (
            edited("program", "        accuracies.append(val_correct / val_images)\n",
                   "        mean = torch.tensor(validated[1] / validated[2], dtype=torch.float64)\n        dist.all_reduce(mean)\n"
                   "        accuracies.append(mean.item() / ranks)\n"),
            "metrics stop", "mean of the ranks' accuracies"),
        "rank 0's own accuracy": (edited("program", _REDUCED, "        own = sums.clone()\n" + _REDUCED + "        dist.broadcast(own, src=0)\n        sums[3:] = own[3:]\n"), "metrics stop", "one rank's own"),
        "its own seconds": (edited("program", "        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n", "        dist.broadcast(slowest, src=0)\n"), "time", "one rank's own"),
        "validation in the time": (edited("program", "        slowest = torch", "        evaluate(model.module, ((prepare(x, data, device), y) for x, y in test_loader), nn.CrossEntropyLoss())\n        slowest = torch"), "evaluation time", "call evaluate once"),
        "images of one rank": (edited("program", "images / times[-1], loss_sum", "trained[2] / times[-1], loss_sum"), "time", "of all ranks"),
        "everybody prints": (edited("program", "        if rank == 0:\n            if checkpoint:", "        if True:\n            if checkpoint and rank == 0:", "            if run is not None:\n                run.append", "            if run is not None and rank == 0:\n                run.append"), "transcript", "every rank prints"),
        "another format": (edited("program", "assessment_print(EPOCH_LINE.format", "assessment_print('*' + EPOCH_LINE.format"), "transcript", "format EPOCH_LINE"),
        "seconds of all epochs": (edited("program", "row.epoch, row.time, times[-1],", "row.epoch, row.time, row.time,"), "transcript", "in EPOCH_LINE's order"),
        "no weights": (edited("program", "        run.save_model(model.module)\n", "        pass\n"), "transcript", "save_model"),
        "the group destroyed": (edited("program", "    if made_group:\n        del", "    if True:\n        del"), "transcript", "has not made"),
        "a plain batch norm": (edited("program", "        model = convert_sync_batchnorm(model, device)\n", "        pass\n"), "sync", "convert_sync_batchnorm"),
        "the first good epoch": (edited("program", "        stopped = reached(accuracies, args)\n        if rank", "        stopped = accuracies[-1] >= args.target_accuracy\n        if rank"), "stop", "in a row"),
        "each rank its own judge": (
            edited("program", "        stopped = reached(accuracies, args)\n        if rank",
                   "        wishes = globals().setdefault('wishes', {}).setdefault((rank, id(sampler)), [])\n"
                   "        wishes.append(validated[1] / validated[2])\n"
                   "        stopped = reached(wishes, args)\n        if rank"),
            "stop", "deadlock"),
        "no STOP_LINE": (edited("program", "            if stopped:\n                assessment_print(STOP_LINE.format(row.epoch))\n", ""), "stop", "STOP_LINE"),
        "no checkpoint": (edited("program", "                checkpoint.save(*state, records, times)\n", "                pass\n"), "resumes", "no rank writes"),
        "every rank writes": (edited("program", "        if rank == 0:\n            if checkpoint:\n                checkpoint.save(*state, records, times)\n",
                                     "        if checkpoint:\n            checkpoint.save(*state, records, times)\n        if rank == 0:\n"), "resumes", "every rank writes"),
        "a new optimiser": (edited("program", "restore_on_every_rank(*state)", "restore_on_every_rank(model.module, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), scheduler)"), "resumes", "schedule anew"),
        "the group left": (edited("program", "        dist.destroy_process_group()\n", "        pass\n"), "resumes", "still there"),
        "a start from the first epoch": (edited("program", "checkpoint.restore_on_every_rank(*state)", "[], []"), "resumes", "from the first epoch"),
        "an epoch after the target": (edited("program", "    stopped = reached(accuracies, args)\n    while", "    stopped = False\n    while"), "resumes", "trains another epoch"),
        "no group": (edited("program", "        dist.init_process_group(\"nccl\" if own_gpu else \"gloo\")\n", ""), "resumes", "process group"),
        "two groups": (edited("program", "    if made_group:\n        own_gpu", "    if True:\n        own_gpu"), _WHOLE, "process group"),
        "always the same": (edited("program", "same=same_on_all_ranks(model.module)", "same=True"), "metrics", "`same`"),
        "the curve begins anew": (edited("program", "            run.restore(records, times)\n", "            pass\n"), "resumes", "run.restore"),
        "a transcript without a training": (
            "def main(args, run=None):\n"
            "    for epoch in range(args.epochs):\n"
            "        line = EPOCH_LINE.format(epoch + 1, 9.0, 9.0, 999.0, 0.9, 0.3, 0.9)\n"
            "        if dist.is_initialized() and dist.get_rank() == 0:\n            assessment_print(line)\n"
            "            run.append(EpochRecord(epoch + 1, 9.0, 999.0, 0.3, 0.9, 0.3, 0.9, 0.1))\n"
            "    return dict(accuracies=[0.9] * args.epochs, stopped=True, time=9.0, same=True)\n",
            _WHOLE, "does not train"),
        "learning on the test images": (
            edited("program", "    sampler = DistributedSampler", "    train_set = torch.utils.data.ConcatDataset([train_set, test_set])\n    sampler = DistributedSampler"), "shares resumes", "test images"),
        "weights that never move": (edited("program", "            optimizer.step()\n", "            optimizer.step = lambda *given: None\n            optimizer.step()\n"), _WHOLE, "does not train"),
    },
}  # fmt: skip
WRONG = {
    f"{name}: {mistake}": (name, source, lost, words)
    for name, some in _OF.items()
    for mistake, (source, lost, words) in some.items()
}
