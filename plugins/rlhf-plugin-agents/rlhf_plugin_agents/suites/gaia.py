"""GAIA's validation tasks from a folder or the hub, and 30 own ones in its manner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError
from rlhf_plugin_agents.scorers import gaia_match
from rlhf_plugin_agents.suites.own import own_task, rows_of
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, TaskSession, Verdict
from rlhf_plugin_agents.tools.attachments import Attachments
from rlhf_plugin_agents.tools.box import Answer, ToolBox
from rlhf_plugin_agents.tools.config import DocumentsConfig, FilesConfig, SearchConfig
from rlhf_plugin_agents.tools.library import DATA, PROMPTS
from rlhf_plugin_agents.trajectory import AgentTrajectory
from rlhf_plugin_episodes.config import ToolConfig

HUB = "gaia-benchmark/GAIA"
SUBFOLDERS = ("", "2023/validation", "validation")
"""Where the metadata may lie below a folder."""
LEVELS = (1, 2, 3)
NEEDED = ("task_id", "Question", "Level", "Final answer")
PROMPT = PROMPTS["gaia"]


def mini_tasks(ctx: BuildContext) -> list[AgentTask]:
    calculator = ctx.registry.config("tool", "rlhf-plugin-episodes/calculator")
    tools = [SearchConfig(), DocumentsConfig(), FilesConfig(folder=str(DATA / "gaia_mini")), calculator]
    shared = ToolBox.of([t for t in tools if isinstance(t, ToolConfig)], ctx)
    rows = [{**row, "prompt": with_files(row["prompt"], row.get("files", ()))} for row in mini_rows()]
    return [own_task(row, shared, system=PROMPT) for row in rows]


def mini_rows() -> tuple[Mapping[str, Any], ...]:
    return rows_of(DATA / "gaia_mini.jsonl")


def with_files(question: str, names: Sequence[str]) -> str:
    return f"{question}\n\nAttached: {', '.join(names)}" if names else question


def official_tasks(folder: Path, tools: Sequence[ToolConfig], ctx: BuildContext) -> list[AgentTask]:
    """Tasks of a folder of GAIA's form or its ``2023/validation``; ``tools`` are offered beside ``files``."""
    folder_of_rows, rows = _metadata(folder)
    shared = ToolBox.of(tools, ctx)
    for number, row in enumerate(rows, start=1):
        _check(row, folder_of_rows, number)
    stateless = all(tool.stateless for tool in tools)
    return [_task(row, folder_of_rows, lambda: shared if stateless else ToolBox.of(tools, ctx)) for row in rows]


def _metadata(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    for candidate in (folder / p for p in SUBFOLDERS):
        for name, read in (("metadata.jsonl", _lines), ("metadata.parquet", _table)):
            if (candidate / name).is_file():
                try:
                    return candidate, read(candidate / name)
                except (OSError, ValueError) as error:
                    raise DatasetError(
                        f"'{candidate / name}' cannot be read: {str(error).splitlines()[0]}",
                        fix="download it whole: a pointer of git-LFS is not the file",
                    ) from error
    raise DatasetError(
        f"suite 'gaia': there is no metadata.jsonl or metadata.parquet in '{folder}'",
        fix="--data FOLDER with the files of 2023/validation, or leave --data out to take them from the hub",
    )


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _table(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    return parquet.read_table(file).to_pylist()


def _check(row: Any, folder: Path, number: int) -> None:
    where = f"{folder}, task {number}"
    if not isinstance(row, Mapping):
        raise DatasetError("a row is not a task", where=where, why="it is not a mapping")
    missing = [k for k in NEEDED if not str(row.get(k) or "").strip()]
    if missing:
        raise DatasetError(f"a task has no '{missing[0]}'", where=where)
    if str(row["Level"]) not in map(str, LEVELS):
        raise DatasetError(f"level {row['Level']!r} is unknown", where=where, fix="GAIA has the levels 1, 2 and 3")
    if row["Final answer"] == "?":
        raise DatasetError(
            "the answers are not there", where=where, why="those of the test split are not published",
            fix="--data FOLDER with the validation split",
        )  # fmt: skip
    name = str(row.get("file_name") or "")
    if name and (Path(name).name != name or not (folder / name).is_file()):
        raise DatasetError(
            f"the attachment '{name}' of task {row['task_id']} is missing",
            where=str(folder),
            fix="download the whole folder, with the files beside its metadata",
        )


def _task(row: Mapping[str, Any], folder: Path, box: Callable[[], ToolBox]) -> AgentTask:
    name, level, answer = str(row.get("file_name") or ""), int(row["Level"]), str(row["Final answer"])
    attached = [name] if name else []
    files = Attachments({n: folder / n for n in attached})

    def wrap(tool: str, arguments: Mapping[str, Any], answer_call: Answer) -> str:
        return files.call(**arguments) if tool == "files" else answer_call(tool, arguments)

    def open_session(seed: int) -> TaskSession:
        return TaskSession(box().around(wrap, *([FilesConfig().spec()] if attached else [])))

    def judge(trajectory: AgentTrajectory, room: TaskSession) -> Verdict:
        value = gaia_match(trajectory.answer, {"answer": answer})
        return Verdict(value, value == 1.0, None, f"wanted: {answer}")

    calls = [{"name": "files", "arguments": {"path": n}} for n in attached]
    calls = calls or [{"name": "calculator", "arguments": {"expression": "1"}}]  # planners want a step
    return AgentTask(
        str(row["task_id"]),
        f"level_{level}",
        ({"role": "user", "content": with_files(str(row["Question"]), attached)},),
        open_session,
        judge,
        {"oracle": Script(calls, answer), "wrong": Script(calls, "I do not know")},
        system=PROMPT,
        level=level,
        judged_by=[answer, *(sha256((folder / n).read_bytes()).hexdigest()[:16] for n in attached)],
    )


def from_hub(name: str = HUB) -> Path:
    from huggingface_hub import get_token, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    wanted: dict[str, Any] = {"repo_type": "dataset", "allow_patterns": ["2023/validation/*"]}
    fix = f"accept the conditions on https://huggingface.co/datasets/{name}, set HF_TOKEN, or --data FOLDER"
    try:
        local = Path(snapshot_download(name, local_files_only=True, **wanted))
    except LocalEntryNotFoundError:
        local = None
    if get_token() is None:
        if local is not None:
            return local
        raise DatasetError(
            f"'{name}' is gated, and there is no token",
            why="it is not a folder here, so it is the hub's data set of this name",
            fix=fix,
        )
    try:
        return Path(snapshot_download(name, **wanted))  # completes a download that was broken off
    except (GatedRepoError, RepositoryNotFoundError) as error:
        raise DatasetError(
            f"'{name}' cannot be read with this token", why=str(error).splitlines()[0], fix=fix
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        if local is not None:
            return local
        raise DatasetError(f"'{name}' cannot be downloaded: {error}", fix="try again, or --data FOLDER") from error
