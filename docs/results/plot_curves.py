"""Draw every learning curve of this folder: accuracy against epoch, as the HW4 slides ask for it.

python docs/results/plot_curves.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from course_lib.plots import curves as plots
from course_lib.runs.records import read_learning_curve

FOLDER = Path(__file__).parent
THRESHOLDS = {
    "resnet_cifar100": 0.60, "resnet_tinyimagenet": 0.50, "pretrained_cifar100": 0.70,
    "sync_sgd_cifar100": 0.60, "async_sgd_cifar100": 0.60, "assessment": 0.85,
}  # fmt: skip


def draw(path: Path) -> None:
    curve = read_learning_curve(path)
    program = next(name for name in THRESHOLDS if path.stem.startswith(name))
    threshold = THRESHOLDS[program]
    figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    ax.plot(curve.epoch[1:], curve.val_accuracy[1:], marker="o", color=plots.COLOURS["measured"], label="held-out images")
    ax.plot(
        curve.epoch[1:], curve.train_accuracy[1:], marker="s", markersize=4, color=plots.COLOURS["other"],
        label="training, augmented",
    )  # fmt: skip
    ax.axhline(
        threshold, color=plots.COLOURS["reference"], linestyle="--", linewidth=1, label=f"asked for: {threshold:.0%}"
    )
    ax.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1), xlim=(0, None))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.set_title(
        f"{path.stem}: {curve.val_accuracy.iloc[-1]:.1%} after {len(curve) - 1} epochs", loc="left", fontsize=11
    )
    ax.legend(frameon=False, loc="lower right")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.csv")):
        draw(path)
