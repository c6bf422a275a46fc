"""`python -m tests.chaos`."""

import sys

from tests.chaos.campaign import main

sys.exit(main())
