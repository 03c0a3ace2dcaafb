"""A run as Python sees it: its metrics as tables, its model, and how to go on with it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.runs.read import StoredRun, read_run
from rlhf_core.types.errors import RunDirError

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """One run directory.

    Example:
        run = train(algo="grpo", reward="verifier", dataset="pocket/arithmetic", settings={"trainer.steps": 2})
        run.metrics["reward/mean"].plot()
    """

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._stored.path

    @property
    def status(self) -> str:
        """``completed``, ``stopped``, ``interrupted``, ``failed`` or ``unfinished``."""
        return self._stored.status

    @property
    def config(self) -> Mapping[str, Any]:
        """Every setting of the plan."""
        return self._stored.plan.config

    @property
    def summary(self) -> Mapping[str, Any]:
        """What ``summary.json`` holds; empty until the run is over."""
        return self._stored.summary or {}

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per step, indexed by it; evaluations of the step (``eval/``) stand in its row, seconds as ``time/``,
        and as one mapping in the column ``time``.
        """
        import pandas as pd

        rows: dict[int, dict[str, Any]] = {}
        for row in self._stored.metrics:
            seconds = row.get("time")
            flat = {f"time/{name}": s for name, s in seconds.items()} if isinstance(seconds, Mapping) else {}
            rows.setdefault(int(row["step"]), {}).update({**row, **flat})
        table = pd.DataFrame([rows[step] for step in sorted(rows)])
        return table.set_index("step") if len(table) else table

    @property
    def samples(self) -> pd.DataFrame:
        """Completions that were kept, one per row: step, prompt, completion, score and what else was written."""
        return self._table("samples")

    @property
    def trace(self) -> pd.DataFrame:
        """Rows of the trace: step, stage, and what the stage says of a prompt."""
        return self._table("trace")

    @property
    def model_path(self) -> Path:
        """Folder of the final model.

        Raises:
            RunDirError: the run has none (yet).
        """
        folder = self.path / "final"
        self._check_there()
        if not folder.is_dir():
            raise RunDirError(
                f"run '{self.path}' has no final model", why=f"it is {self.status}", fix="resume it: run.resume()"
            )
        return folder

    def model(self) -> Any:
        """The final model as a transformers model, in evaluation mode.

        Raises:
            RunDirError: there is none.
            ModelError: it cannot be loaded.
        """
        from rlhf_core.models.config import ModelConfig
        from rlhf_core.models.load import load_policy

        return load_policy(ModelConfig(path=str(self.model_path))).model.eval()

    def tokenizer(self) -> Any:
        """The final model's tokenizer.

        Raises:
            RunDirError: there is none.
        """
        from rlhf_core.models.config import ModelConfig
        from rlhf_core.models.load import load_tokenizer

        return load_tokenizer(ModelConfig(path=str(self.model_path)))

    def resume(self, *, settings: Mapping[str, Any] | None = None, progress: bool = True, **objects: Any) -> Run:
        """Go on with the run, exactly; a completed one stays as it is unless ``settings`` make it longer.

        Example:
            run = run.resume(settings={"trainer.steps": 200})

        Args:
            settings: dotted keys that may change: how long the run is (``trainer.steps``, of offline runs
                ``trainer.max_steps`` and ``trainer.epochs``), how often it evaluates and saves, deadlines.
            progress: show steps.
            objects: ``reward``, ``dataset`` or ``loss`` that the run was started with as Python objects.

        Raises:
            ConfigError: such an object is missing, or is another one than then.
            RunDirError: a setting that may not change.
            RlhfError: the run failed.
        """
        from rlhf_core.python_api.launching import resume

        resume(self.path, objects, progress=progress, settings=settings)
        return self.reload()

    def reload(self) -> Run:
        """Read the folder anew, for a run that is still going on."""
        return Run(read_run(self.path))

    def _check_there(self) -> None:
        if not self.path.is_dir():
            raise RunDirError(
                f"run '{self.path}' is gone", why="there is no such folder any more", fix="rlhf runs list"
            )

    def _table(self, stream: str) -> pd.DataFrame:
        import pandas as pd

        self._check_there()
        return pd.DataFrame(list(read_jsonl(self.path / f"{stream}.jsonl")))

    def __repr__(self) -> str:
        return f"Run('{self.path}', {self._stored.name_of('trainer')}, {self.status}, {self._stored.steps} steps)"

    def _repr_html_(self) -> str:
        shown = {k: v for k, v in self.summary.items() if isinstance(v, int | float | str)}
        cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>" for k, v in shown.items())
        return f"<b>{html.escape(repr(self))}</b><table>{cells}</table>"


def load_run(path: str | Path) -> Run:
    """The run at a path, or of that name under ``runs/``.

    Raises:
        RunDirError: there is none, or it is damaged.
    """
    return Run(StoredRun.find(str(path)))
