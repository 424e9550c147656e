"""`python -m arcaps`."""

from arcaps.cli import main

main()
