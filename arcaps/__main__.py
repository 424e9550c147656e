"""`python -m arcaps`."""

from arcaps.cli import main

if __name__ == "__main__":
    main()
