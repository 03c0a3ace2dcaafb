"""Every example of docs/data.md is read by the reader that training uses, and every command of it runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
EXAMPLES = dict(re.findall(r'```json title="([\w.]+)"\n(.*?)```', PAGE, re.DOTALL))
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
TEXTS = {
    "chat.jsonl": [("What is 2 + 3?", "5"), ("Hi", "Hello.")],
    "completions.jsonl": [("What is 2 + 3?", "5"), ("Hi", "Hello.")],
    "alpaca.jsonl": [("Add the numbers.\n\n2 3", "5"), ("Add 2 and 3.\n5\nAnd twice that?", "10")],
    "sharegpt.jsonl": [("Hi", "Hello.")],
}
"""What the first forms mean: question and completion of each row."""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the page's examples."""
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON that a command of the page prints; it ends with exit code 0."""
    program, *argv = shlex.split(line)
    assert program == "rlhf"
    with pytest.raises(SystemExit) as done:
        main([*argv, *(() if "--json" in argv else ("--json",))])
    out, err = capsys.readouterr()
    assert done.value.code == 0, out + err
    return json.loads(out)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_reads_every_row_of_its_example(
    line: str, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(line, capsys)
    file = shlex.split(line)[3]
    rows = len(EXAMPLES[file].splitlines())
    assert (result["rows"], result["broken"], result["dropped"]) == (rows, [], [])
    if "--heldout" not in line:
        assert result["train"] + result["heldout"] == rows


def test_every_example_is_read_by_a_command() -> None:
    assert {shlex.split(line)[3] for line in COMMANDS} == set(EXAMPLES)


@pytest.mark.parametrize("file", TEXTS)
def test_demonstrations_mean_what_the_page_says(file: str, page: Path, datasets: Callable[..., Any]) -> None:
    rows = datasets(name="jsonl", path=file, heldout_fraction=0).demonstrations("train")
    asked = ["\n".join(m["content"] for m in row.prompt if m["role"] != "system") for row in rows]
    assert list(zip(asked, (row.completion for row in rows))) == TEXTS[file]


def test_the_mixture_of_the_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r'```yaml title="mixture.yaml"\n(.*?)```', PAGE, re.DOTALL)
    (page / "mixture.yaml").write_text(text)
    with pytest.raises(SystemExit) as done:
        main(["config", "validate", "mixture.yaml"])
    assert done.value.code == 0, capsys.readouterr().err
