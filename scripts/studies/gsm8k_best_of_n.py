"""GSM8K with a small model: pass@k, best-of-N by logprob and by a reward model, and lm-evaluation-harness's filters.

    python scripts/studies/gsm8k_best_of_n.py --model GGUF --data test.jsonl.gz --best-by REWARD --out FOLDER
        [--prompts 200] [--n 16] [--max-tokens 160] [--budget SECONDS] [--json FILE --png FILE]

Interrupted or out of budget, the same command goes on; the figures are of the prompts that there are.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_core.api import BuildContext, ModelConfig
from rlhf_core.sdk import open_registry, quiet_libraries
from rlhf_eval.cli import suite_of
from rlhf_eval.harness import Job, context, evaluate
from rlhf_eval.plot import curves
from rlhf_eval.selectors import parse_selector
from rlhf_eval.show import show
from rlhf_eval.store import read

STYLES = ("r1_zero", "plain")
FILTERS = {"strict-match": "strict", "flexible-extract": "lenient"}
"""lm_eval's filter of gsm8k_cot -> our reading that it is compared with."""
EXAMPLES = 5


def measure(style: str, args: argparse.Namespace, ctx: BuildContext) -> dict[str, Any]:
    """Evaluate one style, or go on with it, and return its figures."""
    suite = suite_of(
        ctx,
        "gsm8k",
        path=str(args.data),
        style=style,
        samples=args.n,
        limit=args.prompts,
        max_tokens=args.max_tokens,
        settings=(f"chunk={args.chunk}", "workers=1"),
    )
    chosen = tuple(parse_selector(text, ctx) for text in args.best_by)
    job = Job(suite, ModelConfig(path=str(args.model)), 0, chosen)
    say = lambda text: print(f"{style}: {text}", file=sys.stderr, flush=True)  # noqa: E731
    folder, found = evaluate(job, ctx, args.out / style, say, args.budget)
    stored = read(folder)
    show(stored.title, found, stored.rows, 1)
    if (folder / "curve.png").is_file() and args.png:
        shutil.copy(folder / "curve.png", args.png.with_name(f"{args.png.stem}_{style}{args.png.suffix}"))
    kept = ("prompts", "samples", "completions", "categories", "modes", "endings", "seconds")
    return {
        **{k: found[k] for k in kept if k in found},
        "curves": dict(curves(found)),
        **({"lm_eval": against_lm_eval(stored.rows)} if find_spec("lm_eval") else {}),
    }


def against_lm_eval(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """lm_eval's own filters and metric on the same completions, and the first rows that the two judge otherwise."""
    from rlhf_eval.lm_harness.filters import agreement

    found: dict[str, Any] = {}
    for one in agreement("gsm8k_cot", rows, FILTERS):
        agree = 1 - (len(one.only_theirs) + len(one.only_ours)) / len(rows)
        found[one.filter] = {
            "theirs": one.theirs,
            "ours": one.ours,
            "agree": agree,
            **{
                who: {"count": len(which), "examples": [example(rows[i]) for i in which[:EXAMPLES]]}
                for who, which in (("only_theirs", one.only_theirs), ("only_ours", one.only_ours))
            },
        }
        print(
            f"lm_eval {one.filter}: {one.theirs:.4f}, ours ({FILTERS[one.filter]}): {one.ours:.4f}, the same verdict "
            f"on {agree:.2%}; only theirs {len(one.only_theirs)}, only ours {len(one.only_ours)}"
        )
    return found


def example(row: Mapping[str, Any]) -> dict[str, Any]:
    """What to look at: which row, what was wanted, what we read, and how the completion ends."""
    return {
        "row": f"{row['id']}#{row['sample']}",
        "wanted": row["answer"],
        "we_read": row["detail"],
        "end": row["completion"][-120:],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct, for example as a GGUF file")
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's test.jsonl, .gz too")
    parser.add_argument(
        "--best-by",
        action="append",
        default=[],
        help="as for `rlhf eval`: a folder, or 'reward:{name: ensemble, pairs: ...}'; repeatable",
    )
    parser.add_argument("--out", type=Path, required=True, help="where the rows of both styles go")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--chunk", type=int, default=64, help="completions between two writes")
    parser.add_argument("--budget", type=float, help="seconds for each style; 0 samples nothing more")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--png", type=Path, help="write the curves there, the style's name appended")
    args = parser.parse_args()
    quiet_libraries()
    ctx = context(open_registry(), 0)
    found = {style: measure(style, args, ctx) for style in STYLES}
    if args.json:
        args.json.write_text(json.dumps({"max_tokens": args.max_tokens, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
