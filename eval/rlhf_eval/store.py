"""The folder of one evaluation, with exact resume: ``settings.json``, ``rows.jsonl`` (a row per completion),
``times.jsonl`` (per chunk), ``scores/NAME.jsonl``, ``report.json``, ``pass_rates.jsonl`` and ``curve.png``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, JsonlFile, json_values, read_jsonl, write_json, write_text

LATER: Mapping[str, Any] = {
    "where": None,
    "pass_from": 1.0,
    "reference": "published",
    "chat_template_kwargs": {},
    "assistant_prefix": "",
    "quantize": None,
}
"""Settings that were added later, and what evaluations before did: it goes without saying, so that those go on."""


@dataclass(frozen=True)
class Stored:
    """An evaluation as it lies on disk."""

    path: Path
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def title(self) -> str:
        """Suite, style and model. Example: ``gsm8k (plain), pocket``"""
        suite = self.settings["suite"]
        style = f" ({suite['style']})" if suite.get("style") else ""
        return f"{suite['name']}{style}, {self.settings['model']['path']}"


class ResultFolder:
    """Where one evaluation is written, chunk by chunk."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, _shown(json.loads(json.dumps(json_values(settings))))
        self.rows_path, self.times_path = path / "rows.jsonl", path / "times.jsonl"
        self._files: list[JsonlFile] = []
        self._valid_bytes = 0

    def check(self) -> None:
        """Refuse a folder that holds another evaluation, or something else."""
        settings_file = self.path / "settings.json"
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {self.path} is a file", fix="name a folder")
        if not settings_file.is_file():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ConfigError(
                    f"--out {self.path} holds something that is not an evaluation", fix="name another folder"
                )
            return
        then = _shown(json.loads(settings_file.read_text()))
        changed = differences(then, self.settings)
        if changed:
            rows = "; ".join(f"{key}: {a!r:.60} then, {b!r:.60} now" for key, a, b in changed[:5])
            raise ConfigError(
                f"'{self.path}' holds an evaluation with other settings",
                why=rows,
                fix="the same settings go on with it; for these choose another --out",
            )

    def open(self, chunk_rows: int) -> int:
        """Create or reopen it, cut the rows back to whole chunks, and return how many chunks are done."""
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "settings.json").is_file():
            write_json(self.path / "settings.json", self.settings)
        done = len(list(read_jsonl(self.times_path)))
        self._valid_bytes = _offset(self.rows_path, done * chunk_rows)
        self._files = [
            JsonlFile(self.rows_path, self._valid_bytes),
            JsonlFile(self.times_path, _offset(self.times_path, done)),
        ]
        return done

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows of a chunk that is not whole yet, in the order in which they ended; :meth:`append` takes over."""
        for row in rows:
            self._files[0].append(row)

    def append(self, rows: Sequence[Mapping[str, Any]], times: Mapping[str, Any]) -> None:
        """Add one chunk in its own order; it counts once its line in ``times.jsonl`` is whole."""
        self._files[0].close()
        self._files[0] = JsonlFile(self.rows_path, self._valid_bytes)
        self.show(rows)
        self._valid_bytes = self._files[0].offset()[0]
        self._files[1].append(times)
        self._files[1].offset()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def rows(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.rows_path))

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        (self.path / name).parent.mkdir(exist_ok=True)
        write_text(self.path / name, "".join(json.dumps(json_values(r), ensure_ascii=False) + "\n" for r in rows))


def model_label(path: Path) -> str:
    """What tells a model from others: of ``RUN/final`` that with the run's name."""
    return path.stem if path.name not in ("final", "model") else f"{path.parent.name}-{path.name}"


def named_folder(root: Path, words: Sequence[str], model: str, settings: Mapping[str, Any]) -> Path:
    """``ROOT/WORDS-MODEL-HASH``: the same settings find their folder again."""
    name = "-".join(word for word in (*words, model_label(Path(model))) if word)
    digest = hashlib.sha256(json.dumps(_shown(settings), sort_keys=True).encode()).hexdigest()[:8]
    return root / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}-{digest}"


def _shown(settings: Any) -> Any:
    """Settings without those of :data:`LATER` at that value, at any depth."""
    if not isinstance(settings, Mapping):
        return settings
    return {k: _shown(v) for k, v in settings.items() if k not in LATER or v != LATER[k]}


def _offset(path: Path, lines: int) -> int:
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(len(line) for _, line in zip(range(lines), file))


def differences(then: Any, now: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        names = [*then, *(n for n in now if n not in then)]
        return [row for n in names for row in differences(then.get(n), now.get(n), f"{key}.{n}".removeprefix("."))]
    return [] if then == now else [(key, then, now)]


def read(path: Path) -> Stored:
    if not (path / "settings.json").is_file():
        raise DatasetError(
            f"'{path}' holds no evaluation",
            why="there is no settings.json in it",
            fix="name a folder that `rlhf eval SUITE` wrote; they are under evals/",
        )
    rows = list(read_jsonl(path / "rows.jsonl"))
    if not rows:
        raise DatasetError(
            f"the evaluation in '{path}' has no rows yet", fix="the same `rlhf eval` command goes on with it"
        )
    return Stored(path, json.loads((path / "settings.json").read_text()), rows)
