"""``python -m triton_sam`` is ``triton-sam``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
