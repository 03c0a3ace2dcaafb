"""A toolkit to post-train language models: one small core, everything else an installable plugin.

The functions here are the commands for Python; importing the package imports none of what they need. What plugins
import stands in a module for each topic: :mod:`rlhf_core.losses`, :mod:`rlhf_core.rewards`, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface
from rlhf_core._version import __version__ as __version__

if TYPE_CHECKING:
    from rlhf_core.python_api.inference import evaluate as evaluate
    from rlhf_core.python_api.inference import generate as generate
    from rlhf_core.python_api.inference import score as score
    from rlhf_core.python_api.run import load_run as load_run
    from rlhf_core.python_api.train import train as train

__getattr__, __dir__ = surface(__name__)
