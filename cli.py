"""`python cli.py fit`: the same as the installed command `lre fit`."""

import sys

from lre_lightning.cli import main

if __name__ == "__main__":
    sys.exit(main())
