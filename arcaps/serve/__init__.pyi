"""The public names. They are imported on first use: the limits are known without FastAPI."""

from .app import create_app as create_app
from .limits import Limits as Limits
from .server import listen as listen
from .server import run as run
