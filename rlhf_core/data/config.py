"""Dataset components of the core: files and the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.types.errors import DatasetError, did_you_mean

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
    component: ClassVar[str] = "rlhf_core.data.config:HubSource"
    path: str
    """Hub id such as ``openai/gsm8k``, or a local folder or file."""
    subset: str | None = None
    """The dataset's configuration name, e.g. ``main``."""
    split: str = "train"
    heldout_split: str | None = None
    """For example ``test``; without it rows of ``split`` are set aside."""
    revision: str | None = None


BUILDERS = {
    **{name: name for name in ("csv", "json", "parquet", "arrow")},
    "tsv": "csv",
    "jsonl": "json",
    "txt": "text",
}
SAVED = ("dataset_dict.json", "state.json")
"""What ``save_to_disk`` leaves in its folder."""


class HubSource:
    """Rows of one hub dataset or a local copy of it."""

    def __init__(self, config: HubConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Rows of a split; the held-out split is empty without ``heldout_split``."""
        name = self.config.split if split == "train" else self.config.heldout_split
        if name is None:
            return []
        rows = self._load(name).to_list()
        if not rows:
            raise DatasetError(f"dataset '{self.config.path}' (split '{name}') is empty", fix="choose another split")
        return rows

    def _load(self, split: str) -> Any:
        import datasets

        path = Path(self.config.path).expanduser()
        try:
            if any((path / name).is_file() for name in SAVED):
                return self._saved(path, split)
            builder = BUILDERS.get(path.suffix.lower()[1:]) if path.is_file() else None
            if builder:
                return datasets.load_dataset(builder, data_files={split: str(path)}, split=split)
            name = str(path) if path.exists() else self.config.path
            return datasets.load_dataset(name, self.config.subset, split=split, revision=self.config.revision)
        except DatasetError:
            raise
        except Exception as error:
            why = str(error).strip().splitlines()
            raise DatasetError(
                f"dataset '{self.config.path}' (subset {self.config.subset}, split '{split}') cannot be loaded",
                why=f"{type(error).__name__}: {why[0] if why else ''}",
                fix=self._advice(path, error),
            ) from error

    def _saved(self, path: Path, split: str) -> Any:
        import datasets

        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, datasets.Dataset):
            return saved
        if split not in saved:
            raise DatasetError(
                f"dataset '{self.config.path}' has no split '{split}'",
                why=f"it has {', '.join(map(str, saved))}",
                fix=did_you_mean(split, [str(s) for s in saved]),
            )
        return saved[split]

    def _advice(self, path: Path, error: Exception) -> str:
        if path.exists():
            return "check dataset.subset and dataset.split against the folder's files"
        looks_local = self.config.path.startswith((".", "/", "~")) or self.config.path.count("/") > 1
        if looks_local:
            return f"there is no folder or file '{self.config.path}'; check the path"
        if "split" in str(error).lower():
            return "check dataset.split, for example --set dataset.split=test"
        return "check the id; without a network, download the dataset elsewhere and give its folder as dataset.path"
