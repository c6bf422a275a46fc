"""`python -m dopsd`, for torchrun."""

import sys

from dopsd.cli import main

sys.exit(main())
