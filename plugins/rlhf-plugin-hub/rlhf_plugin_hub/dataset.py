"""Data sets of the hub, or local copies of them."""

from __future__ import annotations

import contextlib
import csv
import gzip
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import did_you_mean
from rlhf_core.data import DatasetError
from rlhf_core.types.errors import error_line
from rlhf_plugin_hub.dataset_config import HubConfig, builder_of
from rlhf_plugin_hub.reach import hub_or_cache

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

        self.config.check_path()
        path = Path(self.config.path).expanduser()
        try:
            if any((path / name).is_file() for name in SAVED):
                return self._saved(path, split)
            if path.is_file() and builder_of(path) == "csv":
                return self._sliced(datasets.Dataset.from_list(list(table_rows(str(path), path.name))), split)
            if path.is_file():
                return self._sliced(datasets.load_dataset(str(builder_of(path)), data_files=str(path))["train"], split)
            name = str(path) if path.exists() else self.config.path
            with contextlib.nullcontext() if path.exists() else hub_or_cache():
                builder = datasets.load_dataset_builder(name, self.config.subset, revision=self.config.revision)
                files = {str(part): list(names) for part, names in (builder.config.data_files or {}).items()}
                if {builder_of(Path(file)) for names in files.values() for file in names} != {"csv"}:
                    return datasets.load_dataset(name, self.config.subset, split=split, revision=self.config.revision)
                names = self._split_of(files, split.partition("[")[0])
                local = datasets.DownloadManager().download(names)
                rows = [row for file in zip(local, names) for row in table_rows(*file)]
                return self._sliced(datasets.Dataset.from_list(rows), split)
        except DatasetError:
            raise
        except Exception as error:
            raise DatasetError(
                f"dataset '{self.config.path}' (subset {self.config.subset}, split '{split}') cannot be loaded",
                why=error_line(error),
                fix=self._advice(path, error),
            ) from error

    def _saved(self, path: Path, split: str) -> Any:
        import datasets

        saved = datasets.load_from_disk(str(path))
        whole = saved if isinstance(saved, datasets.Dataset) else self._split_of(saved, split.partition("[")[0])
        return self._sliced(whole, split)

    def _sliced(self, rows: Any, split: str) -> Any:
        """What ``split`` names of a whole split, as ``train[:10]`` or ``train[10%:20%]``."""
        from datasets import ReadInstruction

        # by another name: ReadInstruction refuses some that a saved split may have
        parts = ReadInstruction.from_spec(split.replace(split.partition("[")[0], "x")).to_absolute({"x": len(rows)})
        return rows.select([n for part in parts for n in range(len(rows))[part.from_ : part.to]])

    def _split_of(self, splits: Mapping[Any, Any], split: str) -> Any:
        if split not in splits:
            raise DatasetError(
                f"dataset '{self.config.path}' has no split '{split}'",
                why=f"it has {', '.join(map(str, splits))}",
                fix=did_you_mean(split, [str(s) for s in splits]),
            )
        return splits[split]

    def _advice(self, path: Path, error: Exception) -> str:
        if path.exists():
            return "repair the file (UTF-8), or check dataset.subset and dataset.split against the folder's files"
        if "split" in str(error).lower():
            return "check dataset.split, for example --set dataset.split=test"
        return "check the id; without a network, download the dataset elsewhere and give its folder as dataset.path"


def table_rows(path: str, name: str) -> Generator[dict[str, str | None], None, None]:
    """Rows of a CSV or TSV file, each cell as it is written: "007" is no 7, "NA" is a text; an empty one is missing.
    ``name`` ends as the file was named where it comes from.
    """
    name = name.lower()
    csv.field_size_limit(2**31 - 1)
    with (gzip.open if name.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t" if ".tsv" in name else ",", strict=True)
        for row in rows:
            if None in row or None in row.values():
                raise DatasetError("cells do not match columns", where=f"{path}:{rows.line_num}", fix='quote "a, b"')
            yield {column: cell or None for column, cell in row.items()}
