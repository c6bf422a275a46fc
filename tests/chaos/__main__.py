"""`PYTHONPATH=tests python -m chaos`."""

import sys

from chaos.campaign import main

sys.exit(main())
