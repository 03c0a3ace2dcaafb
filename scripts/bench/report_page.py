"""The page of a run with 10,000 completions: its size, and how long a browser takes to open it.

The run is a real one of a few steps on the pocket model whose rows are repeated, in their format, until there are 40
steps of 250 completions: once as short as the model writes them, once with 200 random words each, which compress badly.
Times are medians of fresh headless Chromium processes, from the beginning of the navigation to the first chart that is
drawn and to the first completion in the list.

    python -m scripts.bench.report_page            # measure, and write docs/bench/report_page.json
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from scripts.chromium import missing, open_chromium, problems, show_as

ROOT = Path(__file__).parents[2]
STEPS, PROMPTS, GROUP = 40, 50, 5
COMPLETIONS = STEPS * PROMPTS * GROUP
WORDS = 200
ROUNDS = 5
MOST_BYTES, MOST_SECONDS = 8_000_000, 2.0
TRAIN = (
    *("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"),
    *("--set", "trainer.steps=3", "--set", f"trainer.group_size={GROUP}", "--set", "threads=1"),
    *("--set", f"trainer.rollout_batch_size={PROMPTS * GROUP}", "--set", "trainer.eval_samples=16"),
)
WATCH = """
window.firsts = {};
const seen = (name, selector) => {
  if (!(name in window.firsts) && document.querySelector(selector)) {
    window.firsts[name] = -1;
    requestAnimationFrame(() => setTimeout(() => (window.firsts[name] = performance.now())));
  }
};
new MutationObserver(() => {
  seen("chart", "figure .bk-Figure");
  seen("list", "#list li");
}).observe(document, { childList: true, subtree: true });
"""
"""Notes when the first chart and the first completion were painted, in milliseconds since the navigation began."""


@cache
def small_run() -> tempfile.TemporaryDirectory[str]:
    """A finished run of three steps, in ``run`` of the folder."""
    folder = tempfile.TemporaryDirectory()
    command = [sys.executable, "-m", "rlhf_core.cli.main", *TRAIN, "--run-dir", f"{folder.name}/run"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder


def enlarge(run: Path, words: int | None) -> None:
    """Repeat a run's rows until it has :data:`COMPLETIONS` completions; with ``words`` random words each, if given."""
    rng, vocabulary = random.Random(0), vocabulary_of_docs()
    rows = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    prompts = [row for row in rows if row.get("event") == "prompt"]
    by_step = {step: [row for row in prompts if row["step"] == step] for step in {row["step"] for row in prompts}}
    with (run / "trace.jsonl").open("w") as file:
        for step in range(1, STEPS + 1):
            for row in by_step[1 + (step - 1) % len(by_step)]:
                completions = [larger(one, words, rng, vocabulary) for one in row["completions"]]
                file.write(json.dumps({**row, "step": step, "completions": completions}) + "\n")
    steps = [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "loss" in row]
    drifting = (
        {k: v * rng.uniform(0.9, 1.1) if isinstance(v, float) else v for k, v in steps[n % 3].items()}
        for n in range(STEPS)
    )
    with (run / "metrics.jsonl").open("w") as file:
        for step, row in enumerate(drifting, 1):
            file.write(json.dumps({**row, "step": step}) + "\n")


def larger(completion: dict[str, Any], words: int | None, rng: random.Random, vocabulary: list[str]) -> dict[str, Any]:
    """One completion with random score and seed, and with so many random words; its tokens are as many as words."""
    one = {**completion, "seed": rng.getrandbits(63), "score": rng.gauss(0, 1), "advantage": rng.gauss(0, 1)}
    if words is None:
        return one
    one |= {"text": " ".join(rng.choices(vocabulary, k=words)), "tokens": words}
    for key, values in completion.items():
        if isinstance(values, list) and len(values) == completion["tokens"] and values:
            integers = isinstance(values[0], int)
            one[key] = [rng.choice(values) if integers else -rng.expovariate(1) for _ in range(words)]
    if "completion_ids" in one:
        one["completion_ids"] = rng.choices(range(300, 800), k=words)
    return one


def vocabulary_of_docs() -> list[str]:
    """Words of this repository's documents, as often as they stand there."""
    return [
        word for file in sorted((ROOT / "docs").glob("*.md")) for word in re.findall(r"[\w'.,:-]+", file.read_text())
    ]


def write_page(run: Path) -> tuple[Path, float]:
    """``rlhf report`` of the run with all of its completions; the file, and seconds of the command."""
    command = [sys.executable, "-m", "rlhf_core.cli.main", "report", str(run), "--rollouts", str(COMPLETIONS)]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return run / "report.html", time.perf_counter() - start


def completions_on(page: Path) -> tuple[int, int]:
    """How many completions the page holds, and how many of them token by token; what does not fit is thinned."""
    data = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', page.read_text(), re.DOTALL)[0]
    raw = gzip.decompress(base64.b64decode(data))
    packed = json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "big")])
    return len(packed["rows"]), sum("ids" in packed["shapes"][row[0]] for row in packed["rows"])


def opening(page: Path) -> dict[str, float]:
    """Seconds until the first chart and the first completion, in a browser of its own."""
    browser = open_chromium()
    try:
        show_as(browser, 1400, 1000)
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        browser.get(page.as_uri())
        end = time.monotonic() + 60
        while len(firsts := browser.execute_script("return window.firsts")) < 2 or min(firsts.values()) < 0:
            if time.monotonic() > end:
                raise TimeoutError(f"only {sorted(firsts)} was drawn within 60 s; {problems(browser)}")
            time.sleep(0.02)
        if found := problems(browser):
            raise RuntimeError(f"the page logs errors: {found}")
        return {name: ms / 1000 for name, ms in firsts.items()}
    finally:
        browser.quit()


def measured(words: int | None) -> dict[str, Any]:
    """One case: sizes and seconds."""
    import shutil

    with tempfile.TemporaryDirectory() as folder:
        run = Path(shutil.copytree(Path(small_run().name) / "run", Path(folder) / "run"))
        enlarge(run, words)
        page, seconds = write_page(run)
        rounds = [opening(page) for _ in range(ROUNDS)]
        first = {name: round(statistics.median(r[name] for r in rounds), 2) for name in rounds[0]}
        size = page.stat().st_size
        shown, token_by_token = completions_on(page)
        return {
            "completions": COMPLETIONS,
            "completions_on_page": shown,
            "token_by_token": token_by_token,
            "trace_megabytes": round((run / "trace.jsonl").stat().st_size / 1e6, 1),
            "page_megabytes": round(size / 1e6, 2),
            "seconds_to_first": first,
            "slowest_round": {name: round(max(r[name] for r in rounds), 2) for name in first},
            "seconds_to_write": round(seconds, 1),
            "within_limits": size < MOST_BYTES and max(first.values()) < MOST_SECONDS,
            "limits": {"megabytes": MOST_BYTES / 1e6, "seconds": MOST_SECONDS},
            "rounds": ROUNDS,
            "browser": browser_version(),
            "load_average": [round(x, 2) for x in os.getloadavg()],
        }


@cache
def browser_version() -> str:
    """Example: ``chrome 150.0.7871.100``"""
    browser = open_chromium()
    try:
        return f"{browser.capabilities['browserName']} {browser.capabilities['browserVersion']}"
    finally:
        browser.quit()


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """For ``python -m scripts.bench``."""
    if missing():
        raise SystemExit(missing())
    return {"as the pocket model writes": partial(measured, None), f"{WORDS} random words": partial(measured, WORDS)}


def main() -> None:
    """Measure and record."""
    from scripts.bench.__main__ import commit, measure

    measure("report_page", ROOT / "docs" / "bench", commit(), again=True)


if __name__ == "__main__":
    main()
