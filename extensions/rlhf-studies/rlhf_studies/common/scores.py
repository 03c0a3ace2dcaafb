"""Statistics of scores."""

from __future__ import annotations

from typing import Any

import numpy as np


def auc(high: Any, low: Any) -> float:
    """Probability that one of ``high`` scores above one of ``low``; ties count half (Mann and Whitney 1947)."""
    low = np.sort(low)
    below, upto = (np.searchsorted(low, high, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(low)))
