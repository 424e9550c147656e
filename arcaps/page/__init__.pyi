"""The public names, imported on first use."""

from .build import build_folder as build_folder
from .build import build_page as build_page
from .build import page_files as page_files
from .card import Facts as Facts
from .runs import page_options as page_options
