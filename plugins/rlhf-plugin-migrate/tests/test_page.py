"""docs/migration.md: its examples are what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rlhf_core.cli.main import main

PAGE = Path(__file__).parents[3] / "docs" / "migration.md"
TEXT = PAGE.read_text()
BLOCKS = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', TEXT, re.DOTALL))
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_an_example_prints_what_the_page_shows(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, *argv = shlex.split(line)
    Path(argv[2]).write_text(BLOCKS[argv[2]])
    with pytest.raises(SystemExit) as done:
        main(argv)
    out = capsys.readouterr().out
    assert done.value.code == 0
    assert out == BLOCKS[f"{argv[2]}, translated"]
    for text, code in ((out, 2), (out.replace("steps: ???", "steps: 9").replace("???", "random"), 0)):
        Path("ours.yaml").write_text(text)
        with pytest.raises(SystemExit) as done:
            main(["config", "validate", "ours.yaml"])
        said = capsys.readouterr().err
        assert (done.value.code, "not filled in: " in said) == (code, code == 2), said
