"""Pages of the site for files outside docs/ that the documentation links to: READMEs, code, recorded results.

A file keeps its path below ``repository/``, so that no page needs a host to be read in full.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTSIDE = "repository"
"""Folder of the site that holds what lies outside docs/."""
LINK = re.compile(
    r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?(?:\s+\"[^\"]*\")?\))"
)
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".sh": "bash", ".md": "markdown"}
PICTURES = (".png", ".svg", ".jpg")
LONGEST = 40_000
"""Characters of a file that a page shows; recorded results can be much longer."""


def linked(text: str, page: str) -> list[str]:
    """Repository paths that a page at the repository path ``page`` links to, without those in its code blocks."""
    folder = posixpath.dirname(page)
    prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [target(folder, m.group(2)) for m in LINK.finditer(prose)]


def target(folder: str, link: str) -> str:
    """The repository path that a link in ``folder`` leads to; of a folder with a README, that."""
    path = posixpath.normpath(posixpath.join(folder, link))
    readme = f"{path}/README.md"
    return readme if (ROOT / readme).exists() else path


def site_path(path: str) -> str:
    """Where a repository path is in the site.

    Examples: ``docs/update.md`` -> ``update.md``; ``rlhf_core/config/plan.py`` ->
    ``repository/rlhf_core/config/plan.py.md``
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith((".md", *PICTURES)):
        return f"{OUTSIDE}/{path}"
    return f"{OUTSIDE}/{path}/index.md" if (ROOT / path).is_dir() else f"{OUTSIDE}/{path}.md"


def repository_path(page: str) -> str:
    """The inverse for pages of text. Example: ``update.md`` -> ``docs/update.md``"""
    return page.removeprefix(f"{OUTSIDE}/") if page.startswith(f"{OUTSIDE}/") else f"docs/{page}"


def relink(text: str, page: str) -> str:
    path, folder = repository_path(page), posixpath.dirname(page) or "."

    def moved(match: re.Match[str]) -> str:
        linked_path = target(posixpath.dirname(path), match.group(2))
        if linked_path.startswith("..") or not (ROOT / linked_path).exists():
            return match.group(0)
        return f"{match.group(1)}{os.path.relpath(site_path(linked_path), folder)}{match.group(3)}"

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(parts))


def content(path: str) -> str:
    """The page of a file that is not Markdown, or of a folder."""
    file = ROOT / path
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    if file.is_dir():
        names = sorted(p.name + "/" * p.is_dir() for p in file.iterdir() if not p.name.startswith((".", "__")))
        return f"{head}# {path}/\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = file.read_text()
    cut = f"\n\nThe first {LONGEST:,} of {len(text):,} characters.\n" if len(text) > LONGEST else ""
    fence = "`" * 8
    return f"{head}# {path}\n\n{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text[:LONGEST]}\n{fence}\n{cut}"
