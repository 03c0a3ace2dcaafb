"""Dataset components of the core: files and the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlhf_core.plugins.component import ComponentConfig

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext


class JsonlConfig(ComponentConfig):
    """JSON lines, or one JSON array; ``.gz`` is read too."""

    name: str = "jsonl"
    component: ClassVar[str] = "rlhf_core.data.sources:JsonSource"
    downloads: ClassVar[bool] = False
    path: str
    """The file with the rows to train on."""
    heldout_path: str | None = None
    """Rows for held-out evaluation; without it a share of ``path`` is set aside."""

    def preflight(self, ctx: BuildContext) -> None:
        """Check that the files are there."""
        from rlhf_core.data.files import check_file

        for path in (self.path, self.heldout_path):
            if path:
                check_file(path)


class ParquetConfig(JsonlConfig):
    """One Parquet file per split."""

    name: str = "parquet"
    component: ClassVar[str] = "rlhf_core.data.sources:ParquetSource"


class HubConfig(ComponentConfig):
    """A dataset of the hub, or a local copy of one (folder, saved dataset, file), through ``datasets``."""

    name: str = "hub"
    component: ClassVar[str] = "rlhf_core.data.hub:HubSource"
    path: str
    """Hub id such as ``openai/gsm8k``, or a local folder or file."""
    subset: str | None = None
    """The dataset's configuration name, e.g. ``main``."""
    split: str = "train"
    heldout_split: str | None = None
    """For example ``test``; without it rows of ``split`` are set aside."""
    revision: str | None = None
