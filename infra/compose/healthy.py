#!/usr/bin/env python3
"""`dopsd-healthy URL`: exit with 0 if the URL answers 200."""

import sys
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(f"dopsd-healthy: {sys.argv[1]}: {error}")
