"""Working through an array that is mapped from a file and larger than the memory one would like to use."""

import mmap

import numpy as np


def drop_pages(array: np.ndarray) -> None:
    """Give back the memory that the pages of a mapped array take in this process.

    What was written stays: the pages are the file's, and are read again when they are used again. Does nothing to an
    array that is not mapped, or where the system cannot.
    """
    pages = getattr(array, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
