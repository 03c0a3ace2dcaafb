"""What the README and the page of the first loss show works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf_core.cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("kind", ["loss", "optimizer", "algorithm"])
def test_the_page_of_a_first_component_shows_what_its_command_writes(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plugins", "new", f"my-{kind}", "--kind", kind, "--dir", str(tmp_path)])
    assert ended.value.code == 0
    written = {file.name: file.read_text() for file in tmp_path.rglob("*.py")}
    blocks = re.findall(r"```python\n# (\w+\.py): .*?\n(.*?)```", (ROOT / "docs" / f"{kind}.md").read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["config.py", f"{kind}.py"]
    for name, shown in blocks:
        assert shown.split() == written[name].partition('"""\n')[2].split()


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set(re.findall(r"^make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert asked
    assert asked <= targets


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_every_ratio_against_trl_names_the_processor(page: str) -> None:
    """Half of what we win on one make of processor is its library's weakness there."""
    rows = [row for row in (ROOT / page).read_text().splitlines() if "TRL" in row and "times as fast" in row]
    assert rows
    assert [row for row in rows if "AMD" not in row] == []
