"""Which units of a file of pairs are done, so that the same command goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import read_jsonl, write_json


class Progress:
    """``FILE.progress.json`` beside the rows."""

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.output, self.settings = output, dict(settings)
        self.file = output.with_name(f"{output.name}.progress.json")
        self.done: list[str] = []
        self.left_out = 0
        self.size = 0
        """Bytes of rows that belong to units that are done; what a kill left behind them is cut off."""
        if self.file.is_file():
            self._read()
        elif output.exists() and output.stat().st_size:
            raise ConfigError(
                f"'{output}' is there already, and this command did not write it", fix="give another --output"
            )

    def _read(self) -> None:
        saved = json.loads(self.file.read_text())
        differ = [k for k, v in self.settings.items() if saved["settings"].get(k) != v]
        if differ:
            raise ConfigError(
                f"'{self.output}' was begun with other settings: {', '.join(differ)}",
                fix="repeat the first command to go on, or give another --output",
            )
        self.done, self.left_out, self.size = saved["done"], saved["left_out"], saved["size"]
        with self.output.open("r+b") as rows:
            rows.truncate(self.size)

    def rows(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.output))

    def add(self, unit: str, rows: list[dict[str, Any]], left_out: int) -> None:
        """Append a unit's rows, and then say that it is done."""
        with self.output.open("ab") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
            file.flush()
            self.size = file.tell()
        self.done.append(unit)
        self.left_out += left_out
        state = {"settings": self.settings, "done": self.done, "left_out": self.left_out, "size": self.size}
        write_json(self.file, state)
