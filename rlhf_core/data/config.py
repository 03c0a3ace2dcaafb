"""Dataset components of the core: files and the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.types.errors import DatasetError

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

    def preflight(self, ctx: BuildContext) -> None:
        """See :meth:`check_path`."""
        self.check_path()

    def check_path(self) -> None:
        """Refuse a path that is not a hub id and not there."""
        path = Path(self.path).expanduser()
        is_local = self.path.startswith((".", "/", "~")) or self.path.count("/") > 1 or builder_of(path)
        if is_local and not path.exists():
            what = f"there is no folder or file '{self.path}'"
            raise DatasetError(what, where=str(path.absolute()), fix="check the path")
        if path.is_file() and not builder_of(path):
            what = f"nothing says what the file '{self.path}' holds"
            raise DatasetError(what, where=str(path.absolute()), fix=f"end its name in one of .{', .'.join(BUILDERS)}")


BUILDERS = {
    **{name: name for name in ("csv", "json", "parquet", "arrow")},
    "tsv": "csv",
    "jsonl": "json",
    "txt": "text",
}
"""Ending of a file that ``datasets`` reads -> its builder."""


def builder_of(path: Path) -> str | None:
    """The builder for a file's name, which may end in ``.gz`` too."""
    return BUILDERS.get(path.name.lower().removesuffix(".gz").rpartition(".")[2])
