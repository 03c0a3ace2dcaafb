"""Tasks: a folder with ``task.yaml``, ``prompt.md`` and, to begin with, ``program.py``; the shipped ones are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from rlhf_core.config import Config, ConfigError, Registry, component, merge_settings, read_yaml
from rlhf_core.data import Prompt
from rlhf_core.rewards import VerifierConfig
from rlhf_plugin_code.extract import program
from rlhf_plugin_discover.conversation import fenced

HERE = Path(__file__).parent


class TaskFile(Config):
    """What ``task.yaml`` holds."""

    summary: str = ""
    """One line for people."""
    unit: str = "points"
    """What a score counts."""
    verifier: component("verifier")  # pyright: ignore[reportInvalidTypeForm]
    """Judges a whole answer; the larger its value, the better. A relative ``check`` is in the task's folder."""
    row: dict[str, Any] = Field(default_factory=dict)
    """Columns that the verifier reads, such as ``tests``."""
    answer: str | None = None
    """Reference answer, for verifiers that compare."""
    baseline: str | None = None
    """A search that needs no model: ``kissing``, or none."""


@dataclass(frozen=True)
class Task:
    name: str
    settings: TaskFile
    verifier: VerifierConfig
    prompt: Prompt
    starter: str
    """A program to begin with; "" for none."""

    @property
    def question(self) -> str:
        return self.prompt.text

    def program(self, answer: str) -> str:
        return program(answer, getattr(self.verifier, "extract", "last_block")) or ""

    @property
    def answer_to_begin(self) -> str:
        return self.answer(self.starter)

    def begun_with(self, file: Path) -> Task:
        """The task with a program of one's own to begin with.

        Raises:
            ConfigError: it cannot be read, is empty, or has a code fence inside, where an answer would end.
        """
        code = text_of(file)
        if self.program(self.answer(code)).strip() != code.strip() or not code.strip():
            why = "a line of ``` in it ends the code block of an answer" if code.strip() else "it is empty"
            raise ConfigError(f"'{file}' cannot be handed to the verifier", why=why, fix="correct the file")
        return replace(self, starter=code)

    def answer(self, code: str) -> str:
        """A program as an answer in which the verifier finds it: in a code block, unless it reads the whole text."""
        reads_whole_text = getattr(self.verifier, "extract", "none") == "none"
        return code if reads_whole_text or not code.strip() else fenced(code)


def shipped() -> list[str]:
    return sorted(p.parent.name for p in HERE.glob("*/task.yaml"))


def load_task(name: str, registry: Registry, settings: Mapping[str, Any] | None = None) -> Task:
    folder = task_folder(name)
    file = read_task_file(folder, registry, settings or {})
    verifier = verifier_of(file, folder)
    dimensions = str(getattr(verifier, "dimensions", "{dimensions}"))
    seconds = getattr(getattr(verifier, "sandbox", None), "timeout_s", 0.0)
    question = text_of(folder / "prompt.md").replace("{dimensions}", dimensions).replace("{timeout_s}", f"{seconds:g}")
    starter = text_of(folder / "program.py").replace("{dimensions}", dimensions)
    if not question.strip():
        raise ConfigError(f"task '{name}' has no prompt", where=str(folder / "prompt.md"), fix="say in it what to find")
    messages = ({"role": "user", "content": question},)
    prompt = Prompt(f"discover/{folder.name}", messages, file.answer, folder.name, file.row)
    check_prompt(verifier, prompt, folder)
    return Task(folder.name, file, verifier, prompt, starter)


def task_folder(name: str) -> Path:
    folder = HERE / name if name in shipped() else Path(name).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"there is no task '{name}'",
            why=f"shipped: {', '.join(shipped())}; and it is not a folder",
            fix="name one of these, or a folder with task.yaml and prompt.md",
        )
    return folder


def read_task_file(folder: Path, registry: Registry, settings: Mapping[str, Any]) -> TaskFile:
    data = read_yaml(folder / "task.yaml")
    if settings:
        data = merge_settings(data, {"verifier": dict(settings)})
    return TaskFile.from_settings(data, str(folder / "task.yaml"), registry)


def verifier_of(file: TaskFile, folder: Path) -> Any:
    """The task's verifier; a relative ``check`` is looked for in the task's folder."""
    verifier: Any = file.verifier
    check = getattr(verifier, "check", None)
    if check and not Path(check).is_absolute():
        return verifier.model_copy(update={"check": str((folder / check).resolve())})
    return verifier


def check_prompt(verifier: Any, prompt: Prompt, folder: Path) -> None:
    """Refuse a task by whose prompt the verifier can judge nothing."""
    check = getattr(verifier, "check_prompt", None)
    if check is not None and (why := check(prompt)) is not None:
        raise ConfigError(
            f"verifier '{verifier.name}' can judge nothing by this task",
            why=why,
            where=str(folder / "task.yaml"),
            fix="give what it reads in row or answer",
        )


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}") from error
