"""Runs the fault harnesses named on the command line, or all, as ``python -m scripts.bench`` runs measurements.

    python -m scripts.faults kills kills=10

Records go to ``docs/bench`` too. Exit code 1 if a promise is broken: a harness has ``broken(results) -> list[str]``.
"""

from __future__ import annotations

import sys

from scripts.bench.__main__ import main, names

sys.exit(main("scripts.faults", names("scripts.faults"), __doc__))
