"""Configuration of the data sets of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.data import DatasetError


class HubConfig(ComponentConfig):
    """A dataset of the hub, or a local copy of one (folder, saved dataset, file), through ``datasets``."""

    name: str = "hub"
    component: ClassVar[str] = "rlhf_plugin_hub.dataset:HubSource"
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

    def look_up(self) -> None:
        """Ask the hub, or what was downloaded before, whether the dataset and its splits are there; rows are not
        downloaded.

        Raises:
            DatasetError: they are not.
        """
        from rlhf_plugin_hub.reach import look_up

        splits = [split for split in (self.split, self.heldout_split) if split is not None]
        look_up(self.path, self.subset, self.revision, splits)

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
