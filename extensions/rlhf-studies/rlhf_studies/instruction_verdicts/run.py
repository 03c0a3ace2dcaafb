"""Every file of reference verdicts, and each instruction on which we differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_studies.common.outside import data_file
from rlhf_studies.common.tables import markdown
from rlhf_studies.instruction_verdicts.compare import compare_ifbench, compare_ifeval
from rlhf_studies.instruction_verdicts.config import InstructionVerdictsConfig


class InstructionVerdicts:
    """The study."""

    def __init__(self, config: InstructionVerdictsConfig) -> None:
        self.config = config

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """Verdicts by file, and the differences."""
        compared = list(compare_ifeval(data_file(self.config.data, "ifeval"), self.config.every))
        compared += compare_ifbench(self.config.ifbench) if self.config.ifbench else []
        return {
            "files": [{"file": f.file, "verdicts": f.verdicts, "differ": len(f.differences)} for f in compared],
            "differences": [difference._asdict() for f in compared for difference in f.differences],
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        """The report; every seed gives the same."""
        found = next(iter(results.values()))
        files = [tuple(row.values()) for row in found["files"]]
        differences = [
            (d["file"], d["key"], d["instruction"], d["ours"], f"`{d['arguments']}`") for d in found["differences"]
        ]
        each = markdown(("file", "row", "instruction", "ours", "its arguments"), differences)
        return f"{markdown(('file', 'verdicts', 'differ'), files)}\n\n{each}"
