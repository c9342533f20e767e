"""Staged data sets → batches, and what is done to them on the way."""

from course_lib.data.batches import Augmentation, Batches, ImageData, PackedDataset, Split, fits, load, on_device

__all__ = ["Augmentation", "Batches", "ImageData", "PackedDataset", "Split", "fits", "load", "on_device"]
