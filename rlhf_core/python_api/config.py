"""Configurations of components that were passed in as Python objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.python_api.object_registry import find_object
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext


class PythonObjectConfig(ComponentConfig):
    """An object that :func:`rlhf_core.train` was given; a run with one cannot be repeated from its plan alone."""

    slot: ClassVar[str] = ""
    """The argument of ``train`` that it was."""

    name: str = "python"
    description: str = ""
    """Module and name of the object, or what it holds."""
    digest: str = ""
    """Of its source code or rows (16 hex digits); empty where there is none."""
    reproducible_from_file: bool = False
    """Always false: the plan does not hold the object."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a run whose object is not there, or whose processes it cannot reach."""
        find_object(self.slot, self.description, self.digest)
        if ctx.world_size > 1:
            raise ConfigError(
                f"{self.slot} is a Python object, and the run has {ctx.world_size} processes",
                why="it cannot be sent to the other processes",
                fix=f"make it a plugin (rlhf plugins new NAME --kind {self.slot}), or train with nproc=1",
            )


class PythonRewardConfig(PythonObjectConfig):
    """A reward function that was passed to :func:`rlhf_core.train`."""

    slot: ClassVar[str] = "reward"
    component: ClassVar[str] = "rlhf_core.python_api.objects:PythonReward"


class PythonLossConfig(PythonObjectConfig):
    """A loss function that was passed to :func:`rlhf_core.train`."""

    slot: ClassVar[str] = "loss"
    component: ClassVar[str] = "rlhf_core.python_api.objects:PythonLoss"


class PythonDatasetConfig(PythonObjectConfig):
    """Rows that were passed to :func:`rlhf_core.train`."""

    slot: ClassVar[str] = "dataset"
    component: ClassVar[str] = "rlhf_core.python_api.objects:PythonDataset"
    downloads: ClassVar[bool] = False
