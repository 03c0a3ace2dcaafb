"""Dataset components of the core: files, the hub, and the built-in pocket world."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlhf_core.config.base import ComponentConfig
from rlhf_core.errors import DatasetError

if TYPE_CHECKING:
    from rlhf_core.context import BuildContext
    from rlhf_core.protocols import DatasetSource


def check_file(path: str) -> None:
    """Refuse a missing file.

    Raises:
        DatasetError: names it, and near files in its folder.
    """
    from rlhf_core.errors import did_you_mean

    file = Path(path).expanduser()
    if not file.is_file():
        near = did_you_mean(file.name, [p.name for p in file.parent.glob("*")] if file.parent.is_dir() else [])
        raise DatasetError(f"dataset '{path}' does not exist", fix=near or "check --dataset")


class JsonlConfig(ComponentConfig):
    """JSON lines, or one JSON array; ``.gz`` is read too."""

    name: str = "jsonl"
    path: str
    heldout_path: str | None = None
    """Rows for held-out evaluation; without it a share of ``path`` is set aside."""

    def preflight(self, ctx: BuildContext) -> None:
        """Check that the files are there."""
        for path in (self.path, self.heldout_path):
            if path:
                check_file(path)

    def build(self, ctx: BuildContext) -> DatasetSource:
        """Return the source."""
        from rlhf_core.data.sources import JsonlSource

        return JsonlSource(self)


class ParquetConfig(JsonlConfig):
    """One Parquet file per split."""

    name: str = "parquet"

    def build(self, ctx: BuildContext) -> DatasetSource:
        """Return the source."""
        from rlhf_core.data.sources import ParquetSource

        return ParquetSource(self)


class HubConfig(ComponentConfig):
    """A dataset of the hub, or a local folder in its form, through ``datasets.load_dataset``."""

    name: str = "hub"
    path: str
    subset: str | None = None
    split: str = "train"
    heldout_split: str | None = Field(None, description="For example 'test'; without it rows of `split` are set aside.")
    revision: str | None = None

    def build(self, ctx: BuildContext) -> DatasetSource:
        """Return the source."""
        from rlhf_core.data.sources import HubSource

        return HubSource(self)


class PocketConfig(ComponentConfig):
    """The built-in world; see docs/pocket.md."""

    name: str = "pocket"
    subset: Literal["assistant", "arithmetic"] = "assistant"

    def build(self, ctx: BuildContext) -> DatasetSource:
        """Return the source."""
        from rlhf_core.data.sources import PocketSource

        return PocketSource(self)
