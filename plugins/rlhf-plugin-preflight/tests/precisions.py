"""Prints planned and measured bytes of a short run in float32, in mixed precision, and on two ranks that gather layers
in 16 bits; forks for each."""

from __future__ import annotations

import json

from scripts.bench._memory_run import plan_and_measure
from scripts.bench.memory_plan import FSDP, SIXTEEN_BITS, names_of, rows, settings_of

if __name__ == "__main__":
    row = rows()["sft, one process"]
    settings = settings_of("pocket", row)
    found = {
        chosen: plan_and_measure(names_of("pocket", row), (*settings, f"trainer.precision={chosen}"))
        for chosen in ("fp32", "bf16")
    }
    found["gathered in 16 bits"] = plan_and_measure(names_of("pocket", row), (*settings, *FSDP, *SIXTEEN_BITS), 2)
    print(json.dumps(found))
