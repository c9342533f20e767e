"""What the set-up cell of a release notebook does once the course is installed: look at the machine, stage the data."""

from course_lib.system.doctor import Finding, as_text, examine
from course_lib.system.doctor.report import CHECKS, data
from data_prep.catalogue import CATALOGUE
from data_prep.errors import DataError
from data_prep.staging import fetch, stand_in

__all__ = ["set_up"]


def set_up(*datasets: str) -> None:
    """Print the machine's problems and speed; stage data sets, with a progress bar.

    Where no source of a set can be reached, a line says which set takes its place and what to write for it: the images
    that came with the course, or made-up ones.

    Parameters
    ----------
    datasets : str
        Names; those that need no staging are passed over.
    """
    found = examine(check for check in CHECKS if check is not data.staged)
    print(as_text([finding for finding in found if _matters(finding)]))
    for name in datasets:
        if name not in CATALOGUE:  # it is made when it is read, or came with the course
            continue
        try:
            fetch(name)
        except DataError as error:
            print(str(error).partition(": fetch where")[0])
            print(f'→ where the parameters below say "{name}", write "{stand_in(name)}", and train_samples = 0')


def _matters(finding: Finding) -> bool:
    return finding.state == "problem" or finding.check in ("cores", "gpu", "speed")
