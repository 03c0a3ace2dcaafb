"""Writes ``tests/families/table.json``: ``python -m tests.families.record [CELL ...] [FAMILY ...]``, all where none is
named.

vLLM needs ``RLHF_VLLM_PYTHON``, ZeRO deepspeed; what is not measured keeps what was recorded.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.families.cells import CELLS, TABLE, cell

FILE = Path(__file__).with_name("table.json")


def main(asked: list[str]) -> None:
    families = [name for name in asked if name in TABLE] or TABLE
    for what in [name for name in asked if name in CELLS] or CELLS:
        for family in families:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    said = cell(family, what, Path(folder))
                except Exception as error:
                    said = f"FAULT {type(error).__name__}: {error}".splitlines()[0][:300]
            print(f"{what:15} {family:14} {time.monotonic() - began:6.1f} s  {said}", flush=True)
            table = json.loads(FILE.read_text()) if FILE.is_file() else {}
            table.setdefault(family, {})[what] = said
            FILE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
