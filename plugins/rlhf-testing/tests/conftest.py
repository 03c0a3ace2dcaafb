"""Makes the deliberately broken components importable, also in the kit's own subprocess."""

from __future__ import annotations

import sys
from pathlib import Path

FIXTURES = str(Path(__file__).parent / "fixtures" / "broken")
if FIXTURES not in sys.path:
    sys.path.append(FIXTURES)
