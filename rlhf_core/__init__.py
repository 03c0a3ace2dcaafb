"""A toolkit to post-train language models: one small core, everything else an installable plugin.

The functions here are the commands for Python; importing the package imports none of what they need. What plugins
import stands in a module for each topic: :mod:`rlhf_core.losses`, :mod:`rlhf_core.rewards`, and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlhf_core._version import __version__ as __version__

if TYPE_CHECKING:
    from rlhf_core.python_api.inference import evaluate as evaluate
    from rlhf_core.python_api.inference import generate as generate
    from rlhf_core.python_api.inference import score as score
    from rlhf_core.python_api.run import load_run as load_run
    from rlhf_core.python_api.train import train as train

__all__ = ["evaluate", "generate", "load_run", "score", "train"]

_HOMES = {"train": "train", "load_run": "run", "generate": "inference", "score": "inference", "evaluate": "inference"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rlhf_core' has no attribute '{name}'")
    return getattr(import_module(f"rlhf_core.python_api.{_HOMES[name]}"), name)
