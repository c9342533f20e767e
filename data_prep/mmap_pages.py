"""Processing an array that is mapped from a file and too large for the memory."""

import mmap

import numpy as np


def drop_pages(array: np.ndarray) -> None:
    """Release the memory that the pages of a mapped array take in this process.

    Written data stays: the pages belong to the file, and are read again at the next use. The function does nothing to an
    array that is not mapped, or on a system without this call.
    """
    pages = getattr(array, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
