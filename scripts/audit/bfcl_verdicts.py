"""Our verdicts on function calls beside those of the leaderboard's own checker, on possible answers and mutations.

    python -m scripts.audit.bfcl_verdicts --data FOLDER --bfcl VENV/bin/python --write docs/bench/bfcl_verdicts.json

VENV holds ``bfcl-eval`` (``pip install --no-deps bfcl-eval==2026.3.23``; it pins numpy 1.26, so never here). Its
`ast_checker` runs as published; only its table of models, which imports every provider's client, is replaced by one
that leaves dots in names.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rlhf_plugin_agents.suites.bfcl import CATEGORIES, example, fault_in_calls, read_category

MUTATIONS = 10
THEIRS = """
import json, sys, types
from collections import defaultdict
table = types.ModuleType("bfcl_eval.constants.model_config")
table.MODEL_CONFIG_MAPPING = defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=False))
sys.modules[table.__name__] = table
from bfcl_eval.constants.enums import Language
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
for line in sys.stdin:
    case = json.loads(line)
    calls = [{name: arguments} for name, arguments in case["calls"]]
    try:
        result = ast_checker(case["functions"], calls, case["answers"], Language.PYTHON, case["file"], "none")
        print(json.dumps([result["valid"], str(result.get("error_type", "")), str(result.get("error"))[:200]]))
    except Exception as error:
        print(json.dumps([None, "raises", f"{type(error).__name__}: {error}"[:200]]))
"""
Calls = list[tuple[str, dict[str, Any]]]


def cases(folder: Path) -> list[dict[str, Any]]:
    """The example of every possible answer, then ten mutations of it."""
    rows: list[dict[str, Any]] = []
    for category, file in CATEGORIES.items():
        if category == "irrelevance":
            continue
        for row, answers in read_category(folder, file):
            needed = {f["name"]: f["parameters"]["required"] for f in row["function"]}
            right: Calls = [(n, example(a, needed[n])) for answer in answers for n, a in answer.items()]
            rng = random.Random(row["id"])
            made = [("none", right), *(mutated(right, answers, rng) for _ in range(MUTATIONS))]
            rows += [
                {
                    "id": row["id"],
                    "file": file,
                    "what": what,
                    "functions": row["function"],
                    "answers": answers,
                    "calls": c,
                }
                for what, c in made
            ]
    return rows


def mutated(right: Calls, answers: Sequence[Mapping[str, Any]], rng: random.Random) -> tuple[str, Calls]:
    """One change at random; some leave the calls acceptable."""
    calls = deepcopy(right)
    while True:
        what = rng.choice(
            ["drop", "rename", "add", "twice", "none_left", "order", "other", "value", "value", "value", "type"]
        )
        n = rng.randrange(len(calls))
        name, arguments = calls[n]
        accepted = answers[n][name]
        key = rng.choice(list(accepted)) if accepted else None
        if what == "none_left":
            return what, []
        if what == "twice":
            return what, [*calls, calls[n]]
        if what == "order" and len(calls) > 1:
            rng.shuffle(calls)
            return what, calls
        if what == "rename":
            calls[n] = (name.replace(".", "_") if "." in name else f"{name}_2", arguments)
            return what, calls
        if what == "add":
            return what, [*calls[:n], (name, {**arguments, "extra": 1}), *calls[n + 1 :]]
        if what == "drop" and key in arguments:
            del arguments[key]
            return what, calls
        if what == "other" and key is not None:
            arguments[key] = as_written(rng.choice(list(accepted[key])))
            return what, calls
        if what in ("value", "type") and key in arguments:
            arguments[key] = changed(arguments[key], rng) if what == "value" else of_another_type(arguments[key], rng)
            return what, calls


def as_written(value: Any) -> Any:
    """An accepted value as a model would write it."""
    if isinstance(value, Mapping):
        return example(value)
    return [example(v) if isinstance(v, Mapping) else v for v in value] if isinstance(value, list) else value


def changed(value: Any, rng: random.Random) -> Any:
    """Another value of the same type, or the same text written otherwise."""
    match value:
        case bool():
            return not value
        case int() | float():
            return rng.choice([value + 1, -value, value * 10, value])
        case str():
            return rng.choice([value.upper(), f" {value}.", value.replace(" ", "-"), f"{value} x", value[1:], ""])
        case list() if value:
            item = rng.randrange(len(value))
            return rng.choice(
                [
                    value[:-1],
                    value[::-1],
                    [*value, value[0]],
                    [*value[:item], changed(value[item], rng), *value[item + 1 :]],
                ]
            )
        case dict() if value:
            key = rng.choice(list(value))
            return rng.choice(
                [
                    {k: v for k, v in value.items() if k != key},
                    {**value, key: changed(value[key], rng)},
                    {**value, "extra": 1},
                ]
            )
        case _:
            return value


def of_another_type(value: Any, rng: random.Random) -> Any:
    """The value as another type."""
    if type(value) is int:
        return rng.choice([float(value), str(value), [value]])
    if type(value) is float:
        return rng.choice([int(value), str(value)])
    return rng.choice([str(value), [value], {"value": value}, 0, True])


def compare(rows: Sequence[Mapping[str, Any]], theirs: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Counts, and every case on which the two differ."""
    kinds: Counter[str] = Counter()
    differing: list[dict[str, Any]] = []
    raised: list[dict[str, Any]] = []
    for row, (valid, kind, text) in zip(rows, theirs, strict=True):
        fault = fault_in_calls(row["functions"], row["calls"], row["answers"])
        shown = {
            "id": row["id"],
            "mutation": row["what"],
            "calls": row["calls"],
            "ours": fault,
            "theirs": f"{kind} {text}",
        }
        kinds[f"{row['what']}: {'valid' if valid else 'invalid' if valid is not None else 'raises'}"] += 1
        if valid is None:
            raised.append({**shown, "ours_valid": fault is None})
        elif valid != (fault is None):
            differing.append(shown)
    judged = len(rows) - len(raised)
    refused = [r["id"] for r, t in zip(rows, theirs, strict=True) if r["what"] == "none" and t[0] is False]
    return {
        "cases": len(rows),
        "questions": len({r["id"] for r in rows}),
        "judged_by_both": judged,
        "equal": judged - len(differing),
        "share": (judged - len(differing)) / judged,
        "examples_that_the_leaderboard_refuses": refused,
        "by_mutation": dict(sorted(kinds.items())),
        "differing": differing,
        "raised_there": raised[:20],
        "raised_there_count": len(raised),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bfcl", type=Path, required=True, metavar="PYTHON", help="of the environment with bfcl-eval")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args(argv)
    rows = cases(args.data)
    sent = "".join(json.dumps({k: r[k] for k in ("functions", "calls", "answers", "file")}) + "\n" for r in rows)
    done = subprocess.run([args.bfcl, "-c", THEIRS], input=sent, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    result = {"bfcl_eval": "2026.3.23", **compare(rows, [json.loads(line) for line in done.stdout.splitlines()])}
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    print(text if len(text) < 20_000 else text[:20_000])
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    return 0 if result["share"] >= 0.999 else 1


if __name__ == "__main__":
    sys.exit(main())
