"""The embedded default: a generated small world, its data sets, and a small model that lives in it.

For studies, which know the truth: facts and how an answer is rendered, labelled by the simulated annotator and scored.
"""

from __future__ import annotations

from pathlib import Path

from rlhf_plugin_pocket.data import (
    LABEL_TEMPERATURE,
    LABEL_WEIGHTS,
    candidate,
    load_pairs,
    of_split,
    questions,
    utility,
)
from rlhf_plugin_pocket.gold import WEIGHTS, gold_score, is_hollow
from rlhf_plugin_pocket.world import Fact, Style, draw_style, facts, render

__all__ = [
    "LABEL_TEMPERATURE",
    "LABEL_WEIGHTS",
    "WEIGHTS",
    "Fact",
    "Style",
    "candidate",
    "draw_style",
    "facts",
    "gold_score",
    "is_hollow",
    "load_pairs",
    "of_split",
    "questions",
    "render",
    "utility",
    "weights_path",
]


def weights_path() -> Path:
    """Folder of the shipped model in Hugging Face form."""
    return Path(__file__).parent / "weights"
