"""A GRPO step of the pocket model, 64 prompts x 8 completions of 8 to 48 tokens, ours against TRL's GRPOTrainer.

    python -m scripts.bench.pocket_step --runs 5

Tokens per second of rollout and update; TRL's rollout is transformers' ``generate``. As ``step_time`` otherwise.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from scripts.bench.step_time import THREADS, measure, table


def run(runs: int = 5) -> dict[str, Any]:
    """Compare."""
    return measure("pocket", "pocket", runs, THREADS)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted steps of each side")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    args = parser.parse_args()
    results = run(args.runs)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    print(table({"pocket": results}))
    for side in ("ours", "trl"):
        print(f"{side}: tokens per second", results[side]["tokens_per_second"])


if __name__ == "__main__":
    main()
