"""ResNet-50 on ImageNet in minutes: the runs that the TACC slides list under “Previous Work”."""

from dataclasses import dataclass

__all__ = ["IMAGENET_EPOCHS", "IMAGENET_IMAGES", "PUBLISHED_RUNS", "PublishedRun"]

IMAGENET_IMAGES = 1_300_000  # the TACC slides: “1.3 million small image files for ImageNet x 90 epochs”
IMAGENET_EPOCHS = 90  # some of the runs needed fewer; the slides do not say


@dataclass(frozen=True)
class PublishedRun:
    """One run.

    Attributes
    ----------
    who, date : str
        The document's words, and its month.
    chips : int
        Processors; of TPUs the chips, which have two cores each.
    kind : str
    seconds : float
    """

    who: str
    date: str
    chips: int
    kind: str
    seconds: float


PUBLISHED_RUNS = (
    PublishedRun("TACC, UC Berkeley, UC Davis", "10/2017", 2048, "KNL", 20 * 60),
    PublishedRun("Tencent, Hong Kong Baptist University", "07/2018", 2048, "P40", 6.6 * 60),
    PublishedRun("Sony", "11/2018", 2176, "V100", 224),
    PublishedRun("Google", "11/2018", 1024, "TPUv3", 2.2 * 60),
    # "2,048 chip … cores": two cores per chip (Kumar et al. 2019)
    PublishedRun("Google", "10/2019", 1024, "TPUv3", 67.1),
)
