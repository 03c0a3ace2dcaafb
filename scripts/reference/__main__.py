"""Writes every page of docs/reference/ and the notebooks; with ``--check`` writes nothing and exits 1 if a file would
change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.audit import seeds
from scripts.reference import (
    algorithms,
    api,
    bench,
    cli,
    components,
    contracts,
    facts,
    families,
    migration,
    notebooks,
    peers,
    run_config,
    studies,
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
HEAD = "<!-- Written by `make docs` from the code; changes made here are lost. -->\n\n"
PAGES: Mapping[str, Callable[[], str]] = {
    "algorithms.md": algorithms.page,
    "api.md": api.page,
    "cli.md": cli.page,
    "config.md": run_config.page,
    "contracts.md": contracts.page,
    "families.md": families.page,
    "migration.md": migration.page,
    "notebooks.md": notebooks.listed,
    "studies.md": studies.page,
    "claims.md": studies.claims_page,
    "asked.md": seeds.page,
}


def main() -> int:
    """Write or compare the pages; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page would change")
    check = parser.parse_args().check
    texts = {**{name: make() for name, make in PAGES.items()}, **components.pages()}
    pages = {
        **{FOLDER / name: HEAD + text for name, text in texts.items()},
        **notebooks.pages(),
        **peers.pages(),
        **bench.pages(),
        **facts.pages(),
        ROOT / "rlhf_core/plugins/shipped.json": components.shipped(),
    }
    stale = [f for f, text in pages.items() if not f.exists() or f.read_text() != text]
    for file in stale:
        print(f"{'out of date' if check else 'wrote'}: {file.relative_to(ROOT)}")
        if not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(pages[file])
    kept = (*FOLDER.rglob("*.md"), *notebooks.FOLDER.glob("*.ipynb"))
    gone = [file for file in kept if file not in pages]
    for file in gone:
        print(f"{'of nothing any more' if check else 'removed'}: {file.relative_to(ROOT)}")
        if not check:
            file.unlink()
    return 1 if check and (stale or gone) else 0


sys.exit(main())
