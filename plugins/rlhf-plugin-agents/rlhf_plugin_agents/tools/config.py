"""Settings of the tools over fixtures; what they offer is known without building them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_core.config import BuildContext, ConfigError
from rlhf_plugin_agents.tools.library import DATA, Documents, Files, Search, load_corpus
from rlhf_plugin_code.config import SandboxSettings
from rlhf_plugin_episodes.config import ToolConfig


class SearchConfig(ToolConfig):
    """Finds documents of a corpus by the words of a query."""

    name: str = "search"
    description: ClassVar[str] = "Searches an encyclopedia. Returns titles and the beginnings of their texts."
    parameters: ClassVar[Mapping[str, Any]] = {"query": {"type": "string", "description": "Words to look for"}}
    corpus: str | None = None
    """A file with one ``{"title", "text"}`` a line; None is the corpus of ``agentbench_mini``."""
    results: int = Field(default=3, ge=1)
    """Documents of an answer."""

    def preflight(self, ctx: BuildContext) -> None:
        _corpus(self.corpus)

    def build(self, ctx: BuildContext) -> Any:
        return Search(_corpus(self.corpus), self.results)


class DocumentsConfig(ToolConfig):
    """Gives the whole text of a document of a corpus."""

    name: str = "documents"
    description: ClassVar[str] = "Returns the whole text of one document of the encyclopedia."
    parameters: ClassVar[Mapping[str, Any]] = {"title": {"type": "string", "description": "The document's exact title"}}
    corpus: str | None = None
    """As of ``search``."""

    def preflight(self, ctx: BuildContext) -> None:
        _corpus(self.corpus)

    def build(self, ctx: BuildContext) -> Any:
        return Documents(_corpus(self.corpus))


class FilesConfig(ToolConfig):
    """Reads text files below a folder."""

    name: str = "files"
    description: ClassVar[str] = "Returns the text of a file, or the names in a folder ('.' for all)."
    parameters: ClassVar[Mapping[str, Any]] = {"path": {"type": "string", "description": "For example notes.txt"}}
    folder: str | None = None
    """None is that of ``agentbench_mini``."""

    def preflight(self, ctx: BuildContext) -> None:
        self._files_folder()

    def build(self, ctx: BuildContext) -> Any:
        return Files(self._files_folder())

    def _files_folder(self) -> Path:
        folder = DATA / "files" if self.folder is None else Path(self.folder).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"tool 'files': there is no folder '{folder}'", fix="set folder to one that exists")
        return folder


class PythonExecConfig(ToolConfig):
    """Runs Python code in the sandbox of rlhf-plugin-code."""

    name: str = "python_exec"
    description: ClassVar[str] = "Runs Python code, standard library only, and returns what it prints, errors included."
    parameters: ClassVar[Mapping[str, Any]] = {"code": {"type": "string", "description": "A whole Python program"}}
    stateful: bool = False
    """Names of earlier calls are still there; False runs each program afresh."""
    sandbox: SandboxSettings = SandboxSettings(timeout_s=10.0)
    """What a program may use."""

    @property
    def stateless(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.stateful

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a machine that cannot isolate programs, and say how it does."""
        from rlhf_plugin_code.preflight import announce

        announce(self.sandbox)

    def build(self, ctx: BuildContext) -> Any:
        from rlhf_plugin_agents.tools.python import PythonExec

        return PythonExec(self.sandbox, stateful=self.stateful)


def _corpus(path: str | None) -> dict[str, str]:
    return load_corpus(DATA / "corpus.jsonl" if path is None else Path(path).expanduser())
