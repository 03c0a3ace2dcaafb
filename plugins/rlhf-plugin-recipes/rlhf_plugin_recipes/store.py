"""The stages' folders: ``OUT/STAGE-KEY``, where the key is the hash of everything that decides the stage's result."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import UserError
from rlhf_core.data import write_json
from rlhf_plugin_recipes.content import fingerprint, is_changed
from rlhf_plugin_recipes.read import Stage
from rlhf_plugin_recipes.stage_plan import Made

BEGUN, DONE, LOG = "stage.json", "done.json", "stage.log"
SAME_AS = {"run": "model"}
"""Outputs whose content is another's: a run's folder changes when a page is written into it, its model does not."""


class Store:
    """Where a recipe keeps its stages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.current = root / "current.json"

    def folder(self, stage: Stage, key: str) -> Path:
        return self.root / f"{stage.name}-{key}"

    def latest(self, stage: Stage) -> dict[str, Any] | None:
        """The parts of the key that the stage had when it was last made or begun."""
        names = _json(self.current) or {}
        record = _json(self.root / str(names.get(stage.name, "")) / BEGUN)
        return None if record is None else record["parts"]

    def finished(self, stage: Stage, key: str) -> Made | None:
        """What the stage left, if it is done and its outputs are still there."""
        folder = self.folder(stage, key)
        record = _json(folder / DONE)
        if record is None or not all((folder / row["path"]).exists() for row in record["outputs"].values()):
            return None
        for name, row in record["outputs"].items():
            if name not in SAME_AS and is_changed(folder / row["path"], row):
                raise UserError(
                    f"stage '{stage.name}': its {name} was changed after the stage wrote it",
                    where=str(folder / row["path"]),
                    why="a file has another digest; later stages would not match it",
                    fix=f"restore it, or run the stage again: --from {stage.name}",
                )
        return _made(folder, record)

    def lost(self, stage: Stage, key: str) -> list[str]:
        """Outputs of a finished stage that are not there any more."""
        folder = self.folder(stage, key)
        record = _json(folder / DONE) or {"outputs": {}}
        return [name for name, row in record["outputs"].items() if not (folder / row["path"]).exists()]

    def begin(self, stage: Stage, key: str, parts: Mapping[str, Any], recipe: str) -> Path:
        folder = self.folder(stage, key)
        folder.mkdir(parents=True, exist_ok=True)
        spent = 0.0 if (folder / DONE).exists() else _spent(folder)
        (folder / DONE).unlink(missing_ok=True)
        record = {"recipe": recipe, "stage": stage.name, "kind": stage.kind_name, "key": key, "parts": parts}
        write_json(folder / BEGUN, {**record, "began": time.time(), "spent_before": spent})
        self.point(stage, key)
        return folder

    def point(self, stage: Stage, key: str) -> None:
        names = _json(self.current) or {}
        if names.get(stage.name) != self.folder(stage, key).name:
            write_json(self.current, {**names, stage.name: self.folder(stage, key).name})

    def finish(self, stage: Stage, key: str, seconds: float) -> Made:
        """Write down the outputs and their content; seconds of interrupted attempts are added."""
        folder = self.folder(stage, key)
        main = next(iter(stage.kind.outputs))
        if not (folder / stage.kind.outputs[main]).exists():
            raise UserError(
                f"stage '{stage.name}' has ended without its {main}",
                where=str(folder / stage.kind.outputs[main]),
                fix=f"see {folder / 'stage.log'}",
            )
        outputs: dict[str, Any] = {}
        for name, path in stage.kind.outputs.items():
            if (folder / path).exists():
                outputs[name] = {"path": path, **({} if name in SAME_AS else fingerprint(folder / path))}
        for name in SAME_AS.keys() & outputs.keys():
            outputs[name]["digest"] = outputs[SAME_AS[name]]["digest"]
        spent = float((_json(folder / BEGUN) or {}).get("spent_before", 0.0))
        record = {"outputs": outputs, "seconds": round(seconds + spent, 3)}
        write_json(folder / DONE, record)
        return _made(folder, record)

    def record(self, made: Made) -> dict[str, Any]:
        """What is written down about a finished stage: its seconds."""
        return _json(made.folder / DONE) or {}

    def set_aside(self, stage: Stage, key: str) -> None:
        """Move a stage's folder out of the way, so that it is made again; nothing is deleted."""
        folder = self.folder(stage, key)
        if not folder.exists():
            return
        replaced = self.root / "replaced"
        replaced.mkdir(exist_ok=True)
        number = 1
        while (replaced / f"{folder.name}-{number}").exists():
            number += 1
        folder.rename(replaced / f"{folder.name}-{number}")


def _spent(folder: Path) -> float:
    """Seconds of the attempts before that did not end; one that was killed has worked until it last wrote its log."""
    record, log = _json(folder / BEGUN) or {}, folder / LOG
    if "began" not in record or not log.is_file():
        return 0.0
    return float(record["spent_before"]) + max(0.0, log.stat().st_mtime - float(record["began"]))


def _made(folder: Path, record: Mapping[str, Any]) -> Made:
    outputs = record["outputs"]
    return Made(
        folder,
        {name: row["digest"] for name, row in outputs.items()},
        {name: str(folder / row["path"]) if row["path"] != "." else str(folder) for name, row in outputs.items()},
    )


def _json(path: Path) -> dict[str, Any] | None:
    """A file's mapping; None if there is none, or a write of it was cut short."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
