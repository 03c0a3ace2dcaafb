"""Writes every page of docs/reference/; with ``--check`` writes nothing and exits 1 if a page would change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference import api, cli, components, run_config, sdk, studies

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
HEAD = "<!-- Written by `make docs` from the code; changes made here are lost. -->\n\n"
PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api.page,
    "cli.md": cli.page,
    "components.md": components.page,
    "config.md": run_config.page,
    "sdk.md": sdk.page,
    "studies.md": studies.page,
}


def main() -> int:
    """Write or compare the pages; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page would change")
    check = parser.parse_args().check
    pages = {FOLDER / name: HEAD + make() for name, make in PAGES.items()}
    stale = [f for f, text in pages.items() if not f.exists() or f.read_text() != text]
    for file in stale:
        print(f"{'out of date' if check else 'wrote'}: docs/reference/{file.name}")
        if not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(pages[file])
    return 1 if check and stale else 0


sys.exit(main())
