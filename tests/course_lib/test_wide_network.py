"""The recorded training of lab 03, on two ranks: what is in its run folder, and when it ends."""

import pytest

from course_lib.distributed import launch
from course_lib.runs.records import RunFolder, read_learning_curve
from course_lib.training.wide_network import train_wide_network


@pytest.mark.parametrize("target, epochs", [(0.01, 1), (0.0, 2)], ids=["target", "no target"])
def test_it_records_each_epoch_until_the_target(tmp_path, target, epochs):
    run = RunFolder(str(tmp_path / "run"), "03_batch_size_scaling", {}, {"name": "fashion-mnist-small"})
    run.start(world_size=2, backend="gloo", device="cpu")
    given = dict(
        dataset="fashion-mnist-small", train_samples=192, batch_size=16, lr=0.02, momentum=0.9, epochs=2,
        warmup_epochs=1.0, width=1, seed=3, target_accuracy=target, patience=1,
    )  # fmt: skip
    stopped = launch(train_wide_network, 2, (run,), given, timeout=300, backend="gloo")
    assert stopped == [target > 0] * 2
    folder = run.finish(stopped[0])
    curve = read_learning_curve(folder / "learning_curve.csv")
    assert len(curve) == 1 + epochs and (folder / "model.safetensors").exists()
    transcript = (folder / "assessment.out").read_text().splitlines()  # of the rank that records
    assert [line[:10] for line in transcript] == [f"Epoch =  {n}" for n in range(1, 1 + epochs)] + ["Early stop"] * (
        target > 0
    )
    assert curve.lr.iloc[1] == pytest.approx(0.004)  # it rises in the first of five steps…
    if epochs == 2:
        assert curve.lr.iloc[2] == pytest.approx(0.02)  # …and begins to fall from the full one in the second epoch
