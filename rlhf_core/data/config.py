"""Dataset components of the core: files."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlhf_core.plugins.component import ComponentConfig

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext


class JsonlConfig(ComponentConfig):
    """JSON lines, or one JSON array; ``.gz`` is read too."""

    name: str = "jsonl"
    component: ClassVar[str] = "rlhf_core.data.files:JsonSource"
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
    component: ClassVar[str] = "rlhf_core.data.files:ParquetSource"
