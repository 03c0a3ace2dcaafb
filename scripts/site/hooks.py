"""Hooks of MkDocs: pages for files outside docs/, and a place in the navigation for every plugin's README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from scripts.site.outside import PICTURES, ROOT, content, linked, relink, repository_path, site_path

PLUGINS = "Plugins"
"""The section of the navigation that ends with all READMEs of plugins."""


def on_config(config: Any) -> Any:
    """List what plugins/ holds, and pages of docs/ without a place, so that a new one is never unreachable."""
    section = next(item[PLUGINS] for item in config.nav if PLUGINS in item)
    readmes = sorted(ROOT.glob("plugins/*/README.md"))
    section += [{f.parent.name: site_path(f.relative_to(ROOT).as_posix())} for f in readmes]
    section.append({"rlhf-eval": site_path("eval/README.md")})
    listed = str(config.nav)
    unlisted = [page.name for page in sorted((ROOT / "docs").glob("*.md")) if f"'{page.name}'" not in listed]
    if unlisted:
        config.nav.append({"More": unlisted})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what the pages link to, and what those pages link to, and so on."""
    waiting = [repository_path(f.src_uri) for f in files if f.src_uri.endswith(".md")]
    waiting += [p.relative_to(ROOT).as_posix() for p in ROOT.glob("plugins/*/README.md")] + ["eval/README.md"]
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in done or path.startswith("..") or not (ROOT / path).exists():
            continue
        done.add(path)
        if path.endswith(".md"):
            waiting += linked((ROOT / path).read_text(), path)
        if not path.startswith("docs/"):
            files.append(generated(path, config))
    return files


def generated(path: str, config: Any) -> File:
    if path.endswith(PICTURES):
        return File.generated(config, site_path(path), abs_src_path=str(ROOT / path))
    text = (ROOT / path).read_text() if path.endswith(".md") else content(path)
    return File.generated(config, site_path(path), content=text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    return relink(markdown, page.file.src_uri)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """A pipe in the code of a table's cell is escaped in the source; Markdown leaves the backslash in."""
    return re.sub(r"<td[^>]*>.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)


def on_post_build(config: Any) -> None:
    """A site without a server has no page for addresses that do not exist; its links begin with a slash."""
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)
