"""docs/bench/README.md: every record with its question, figures and command, from scripts/bench/records.toml."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "bench"
MOST = 6
"""A figure of more cases is given as its range."""
INTRO = """# Recorded measurements

`make bench` measures the first table again; the command of a row makes its record. A record names commit, machine and
versions. Most ran on two CPU cores; times on a busy machine are unreliable. Rows of the last table are
studies, whose records are of an older layout.
"""
PROCESSOR = """
## The processor behind a ratio

torch multiplies float32 matrices with MKL, which uses 512-bit vectors on Intel's processors only. On other processors
with AVX-512 we multiply with oneDNN and TRL does not. On an AMD EPYC of family 25, model 17 that gains a tenth; on a
newer one, where two threads of oneDNN made 383 GFLOP/s and torch's 199, ours was 3.8 (a), 4.2 (b), 3.1 (c) and 2.5 (d)
times as fast (commit d987ceb). On an Intel processor with AVX-512 others measured 2.0 to 2.25, 2.7, 1.9 and 2.05.
The floor is the least time for a step's products at the better of the two speeds; its shares are those of the rollout
and the update, GFLOP/s those of torch and oneDNN (bfloat16: torch).

| GRPO step | threads | times TRL's speed | seconds (ours, TRL) | peak MB | share of floor | GFLOP/s | on |
|---|---|---|---|---|---|---|---|
"""


def pages() -> Mapping[Path, str]:
    sections = tomllib.loads((ROOT / "scripts" / "bench" / "records.toml").read_text())
    named = {name for records in sections.values() for name in records}
    if unlike := named ^ {file.stem for file in FOLDER.glob("*.json")}:
        raise SystemExit(f"docs/bench and scripts/bench/records.toml differ in {', '.join(sorted(unlike))}")
    head = "<!-- Written by `make docs` from the records; changes made here are lost. -->\n\n"
    parts = [section(title, records) for title, records in sections.items()]
    return {FOLDER / "README.md": head + INTRO + "".join(parts) + PROCESSOR + processors()}


def section(title: str, records: Mapping[str, Any]) -> str:
    return f"\n## {title}\n\n| record | question | figures | command |\n|---|---|---|---|\n" + "".join(
        f"| [{name}]({name}.json) | {entry['asks']} | {figures(name, entry.get('figures', {}))} | "
        f"`{entry.get('command', f'python -m scripts.bench {name}')}` |\n"
        for name, entry in records.items()
    )


def figures(name: str, paths: Mapping[str, str]) -> str:
    record = json.loads((FOLDER / f"{name}.json").read_text())
    return "; ".join(f"{what}: {said(dict(found(record, path.split('.'))))}" for what, path in paths.items())


def found(value: Any, path: list[str]) -> Iterator[tuple[str, Any]]:
    if not path:
        yield "", value
    elif path[0] == "*":
        for key, inside in value.items():
            yield from ((f"{key} {more}".strip(), last) for more, last in found(inside, path[1:]))
    elif isinstance(value, Mapping) and path[0] in value:
        yield from found(value[path[0]], path[1:])


def said(values: Mapping[str, Any]) -> str:
    """Example: ``a 3.81 · b 4.24``; of many, ``0.02 to 0.61 (42)``"""
    if len(values) > MOST:
        return f"{short(min(values.values()))} to {short(max(values.values()))} ({len(values)})"
    return ", ".join(f"{key} {short(value)}".strip() for key, value in values.items())


def short(value: Any) -> str:
    """A number with three digits, a list with commas."""
    if isinstance(value, list):
        return " / ".join(map(short, value))
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def processors() -> str:
    """A row for each case of a step."""
    cases = json.loads((FOLDER / "step_time.json").read_text())["cases"]
    return "".join(row_of(case.partition(",")[0], row["results"]) for case, row in cases.items())


def row_of(case: str, result: Mapping[str, Any]) -> str:
    """One case with one number of threads."""
    pairs = [
        *([result[side][key] for side in ("ours", "trl")] for key in ("median_seconds", "peak_rss_mb")),
        result["share_of_floor"].values(),
        result["product_gflops"].values(),
    ]
    texts = (", ".join(f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in pair) for pair in pairs)
    cells = (f"{case}: {result['work']}", result["threads"], f"{result['speedup_vs_trl']:.2f}", *texts)
    return f"| {' | '.join(map(str, cells))} | {result['processor']} |\n"
