"""docs/reference/families.md: what works with what, from ``tests/families/table.json``."""

from __future__ import annotations

import json
import re
from pathlib import Path

TABLE = Path(__file__).parents[2] / "tests" / "families" / "table.json"
COLUMNS = ("packing", "prefix sharing", "LoRA", "QLoRA", "episodes", "fsdp", "ZeRO", "Ulysses", "vLLM")
INTRO = """# What works with what

Two steps of GRPO with a tiny random model of each family of transformers (its `model_type`), on CPUs;
`python -m tests.families.record` makes the table, and tests compare cells with it. A number is the reason of a refusal,
`-` was not measured. Without packing or sharing a run goes on, unless it asks for `trainer.packing=on`. Ulysses is
[sequence parallelism](../scaling.md#long-contexts) on two ranks. vLLM 0.32.0 for CPUs computes GPT-NeoX otherwise than
transformers without any sync too, reads gpt-oss rightly from files and wrongly at a sync, does not start DeepSeek-V3
and fails in Mamba's first request; each such run ends before its first step. Encoder-decoders, and models that read
images or sound and have no form that reads text alone, are refused before they are loaded.

"""


def page() -> str:
    table: dict[str, dict[str, str]] = json.loads(TABLE.read_text())
    reasons: list[str] = []

    def said(cell: str | None) -> str:
        if cell is None or cell == "yes":
            return cell or "-"
        reason = re.sub(r"^('.*'|\w+ForCausalLM) ", "it ", cell)
        if reason not in reasons:
            reasons.append(reason)
        return f"no ({reasons.index(reason) + 1})"

    head = f"| family | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}\n"
    rows = "".join(
        f"| `{family}` | {' | '.join(said(cells.get(column)) for column in COLUMNS)} |\n"
        for family, cells in table.items()
    )
    return INTRO + head + rows + "\n" + "".join(f"{n}. {reason}\n" for n, reason in enumerate(reasons, 1))
