"""The public names. They are imported on first use, so that the command line starts without torch."""

from . import analysis as analysis
from .activation import Activation as Activation
from .activation import CapsuleActivation as CapsuleActivation
from .activation import Squash as Squash
from .activation import SquashVariant as SquashVariant
from .benchmark import bench as bench
from .costs import info as info
from .data import Augmentation as Augmentation
from .data import Data as Data
from .data import Dataset as Dataset
from .data import Loader as Loader
from .data import contact_sheet as contact_sheet
from .data import load_data as load_data
from .data import load_folder as load_folder
from .data import warp as warp
from .errors import ArcapsError as ArcapsError
from .export import Exported as Exported
from .export import export_decoder as export_decoder
from .export import export_onnx as export_onnx
from .layers import ClassCaps as ClassCaps
from .layers import ConvCaps as ConvCaps
from .layers import Decoder as Decoder
from .layers import PrimaryCaps as PrimaryCaps
from .losses import margin_loss as margin_loss
from .losses import reconstruction_loss as reconstruction_loss
from .memory import keep_freed_memory as keep_freed_memory
from .models import ARCapsNet as ARCapsNet
from .models import CapsuleNet as CapsuleNet
from .models import Classifier as Classifier
from .models import ConvNet as ConvNet
from .models import Output as Output
from .models import StrongConvNet as StrongConvNet
from .models import create_model as create_model
from .models import load as load
from .preprocessing import Preprocessing as Preprocessing
from .routing import AttentionRouting as AttentionRouting
from .routing import DynamicRouting as DynamicRouting
from .routing import QueryKeyRouting as QueryKeyRouting
from .routing import Routing as Routing
from .training import Recipe as Recipe
from .training import Run as Run
from .training import evaluate as evaluate
from .training import train as train
from .votes import ConvVotes as ConvVotes

__version__: str
