"""Which folder a model's name stands for: a run's final model, a checkpoint's weights. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from rlhf_core.data.jsonl import read_record
from rlhf_core.types.errors import ModelError, did_you_mean

ROOT = Path("runs")
FORMS = (
    "a folder in Hugging Face form, a run (its final model), a checkpoint, the name of a run under runs/, "
    "a .gguf file, a hub id (organisation/name), 'pocket', 'pocket-tools'"
)
"""What a model may be given as, for messages."""


def model_folder(path: str) -> str:
    """The folder of the model that ``path`` names (``runs/sft/final`` for ``runs/sft`` and ``sft``); a path that names
    one itself, a file or a hub id stays as it is.
    """
    folder = Path(path).expanduser()
    if not folder.exists() and _is_name(path) and is_run(ROOT / path):
        return model_folder(str(ROOT / path))
    if is_run(folder) and (folder / "final").is_dir():
        return str(Path(path) / "final")
    if folder.name.startswith("step-") and (folder / "model").is_dir() and not (folder / "config.json").exists():
        return str(Path(path) / "model")
    return path


ModelPath = Annotated[str, AfterValidator(model_folder)]
"""The type of a setting that names a model: what :func:`model_folder` makes of it."""


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / "plan.json").is_file()


def planned_model(folder: Path) -> Mapping[str, Any]:
    """The ``model`` section of the plan of the run that a folder lies in; {} if there is none that can be read."""
    run = next((above for above in folder.expanduser().absolute().parents[:3] if is_run(above)), None)
    try:
        return {} if run is None else read_record(run / "plan.json")["config"]["model"]
    except (ValueError, KeyError, TypeError):
        return {}


def no_final_model(run: Path) -> ModelError:
    """The error for a run that has no final model (yet)."""
    checkpoints = sorted(p for p in (run / "checkpoints").glob("step-*") if (p / "model").is_dir())
    newest = f"name its newest checkpoint, {checkpoints[-1]}, or " if checkpoints else ""
    return ModelError(
        f"run '{run}' has no final model",
        why="it was stopped, failed, or still runs",
        fix=f"{newest}resume it: rlhf train --resume {run}",
    )


def nothing_there(path: str) -> ModelError:
    """The error for a path where there is no model."""
    return ModelError(
        f"there is no model folder '{path}'",
        where=str(Path(path).expanduser().absolute()),
        why=f"a model may be given as {FORMS}",
        fix=f"{near_names(path)}check the path",
    )


def near_names(path: str) -> str:
    """``"did you mean 'x'? or "`` for folders beside ``path`` and runs of nearly its name; "" if there are none."""
    wanted = Path(path).expanduser()
    parents = {wanted.parent, ROOT} if _is_name(path) else {wanted.parent}
    near = did_you_mean(wanted.name, [p.name for folder in parents if folder.is_dir() for p in folder.iterdir()])
    return near and f"{near} or "


def _is_name(path: str) -> bool:
    return "/" not in path and not path.startswith((".", "~")) and path != "pocket"
