"""Links in the documentation lead to files, and names beside links to code are defined there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "configs/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *sorted((ROOT / "extensions").rglob("README.md")),
]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
CODE_LINK = re.compile(r"\[`([A-Za-z_.]+)`\]\(([^)#\s]+\.py)\)")


def test_every_link_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def names_of(file: Path) -> set[str]:
    """Classes, functions and assigned names of a module, and those of its classes as ``Class.name``."""
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name):
                    names.add(prefix + name)
                    collect(node.body, f"{prefix}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(prefix + name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(prefix + name)
                case ast.Assign(targets=targets):
                    names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))
                case _:
                    pass

    collect(ast.parse(file.read_text()).body, "")
    return names


def wrong_names(page: Path) -> list[str]:
    """Links of a page whose name is not defined in the file that they lead to; the file's own name is allowed."""
    links = CODE_LINK.findall(page.read_text())
    return [
        f"{page.name}: {name} is not in {target}"
        for name, target in links
        if name != Path(target).name and name not in names_of(page.parent / target)
    ]


def test_names_beside_links_to_code_are_defined_there() -> None:
    architecture = ROOT / "docs" / "architecture.md"
    assert len(CODE_LINK.findall(architecture.read_text())) > 50
    assert [problem for page in PAGES for problem in wrong_names(page)] == []


def test_a_name_that_is_gone_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("class Learner:\n    rate: float = 1.0\n\n    def update(self): ...\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[`Learner.update`](code.py) [`Learner.rate`](code.py) [`code.py`](code.py) [`Learner.step`](code.py)"
    )
    assert wrong_names(page) == ["page.md: Learner.step is not in code.py"]


def test_every_setting_of_the_reference_says_what_it_does() -> None:
    rows = [r for r in (ROOT / "docs/reference/config.md").read_text().splitlines() if r.startswith("| `")]
    assert len(rows) > 30
    assert [r for r in rows if r.endswith("|  |")] == []
