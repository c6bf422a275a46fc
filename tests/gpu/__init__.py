"""A pretended CUDA device on torch's CPU build: docs/pretended-gpu.md says what it checks."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # random_weights.py
