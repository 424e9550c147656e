"""Data: one uint8 tensor a data set, batches by indexing, one batched warp."""

from arcaps.data.catalogue import load_data
from arcaps.data.classes import match_classes
from arcaps.data.dataset import Data, Dataset, differences
from arcaps.data.folder import load_folder
from arcaps.data.loader import Batch, Loader
from arcaps.data.sheet import contact_sheet
from arcaps.data.warp import Transform, augment, warp
from arcaps.settings import Augmentation

__all__ = [
    "Augmentation",
    "Batch",
    "Data",
    "Dataset",
    "Loader",
    "Transform",
    "augment",
    "contact_sheet",
    "differences",
    "load_data",
    "load_folder",
    "match_classes",
    "warp",
]
