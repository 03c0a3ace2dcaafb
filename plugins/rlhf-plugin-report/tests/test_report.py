"""`rlhf report`: what is on the page of a run, of several, of a failed one; nothing is fetched, no text is markup."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import rlhf_core
from rlhf_core.sdk import find_run
from rlhf_plugin_report.cli import report
from rlhf_plugin_report.page import render
from rlhf_plugin_report.read import read_page

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028<b>bold</b>"
SETTINGS = {
    "trainer.steps": 2,
    "trainer.rollout_batch_size": 8,
    "trainer.eval_samples": 3,
    "trainer.eval_every": 2,
    "trainer.sampling.max_tokens": 8,
    "threads": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(5) for b in range(5)]
    folder = tmp_path_factory.mktemp("report") / "first"
    rlhf_core.train("grpo", dataset=rows, reward="verifier", settings=SETTINGS, run_dir=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return page_of(run)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run that a test may change."""
    return Path(shutil.copytree(run, tmp_path / "second"))


def page_of(*runs: Path) -> str:
    return render(read_page([find_run(str(run)) for run in runs], 100))


def data_of(page: str) -> list[dict]:
    return json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0])


def test_the_command_writes_a_page_with_curves_rollouts_and_settings(run: Path) -> None:
    result = CliRunner().invoke(report, [str(run)])
    assert result.exit_code == 0, result.output
    page = (run / "report.html").read_text()
    for wanted in (
        "reward/mean from",
        "eval/reward/mean from",
        "completion_length/mean from",
        "trainer.steps",
        "torch",
    ):
        assert wanted in page
    rollouts = data_of(page)
    assert len(rollouts) == 16
    assert {r["step"] for r in rollouts} == {1, 2}
    with_tokens = [r for r in rollouts if "pieces" in r]
    assert with_tokens
    assert all(r["text"] in "".join(r["pieces"]) and len(r["pieces"]) == len(r["logprobs"]) for r in with_tokens)


def test_nothing_on_the_page_is_fetched(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page.split("<script")[0])
    assert "default-src 'none'" in page


def test_texts_of_the_run_are_text_whatever_they_hold(copy: Path) -> None:
    for name in ("trace", "samples"):
        file = copy / f"{name}.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            for one in [row, *row.get("completions", ())]:
                one |= {key: HOSTILE for key in ("prompt", "completion", "text", "detail") if key in one}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(copy)
    assert "<img" not in page.replace("&lt;img", "").split('<script type="application/json"')[0]
    assert {row["text"] for row in data_of(page)} == {HOSTILE}


def test_several_runs_show_the_settings_that_differ(run: Path, copy: Path) -> None:
    plan = json.loads((copy / "plan.json").read_text())
    plan["config"]["seed"] = 7
    (copy / "plan.json").write_text(json.dumps(plan))
    view = read_page([find_run(str(run)), find_run(str(copy))], 100)
    assert view.differences == [("seed", ["0", "7"])]
    assert "first: reward/mean from" in render(view)
    assert "; second: reward/mean from" in render(view)


def test_a_failed_and_an_empty_run_have_a_page(copy: Path) -> None:
    (copy / "summary.json").unlink()
    (copy / "failure.json").write_text(json.dumps({"status": "failed", "error": "TrainingDiverged: loss is nan"}))
    assert "failed: TrainingDiverged: loss is nan" in page_of(copy)
    for name in ("metrics", "trace", "samples"):
        (copy / f"{name}.jsonl").unlink()
    assert "There is no metric with two values yet." in page_of(copy)


def test_a_long_trace_is_thinned_and_the_page_says_so(run: Path) -> None:
    view = read_page([find_run(str(run))], 5).runs[0]
    assert (len(view.rollouts), view.left_out) == (5, 11)
    assert {row["step"] for row in view.rollouts} == {1, 2}


def test_pieces_are_the_text_also_of_characters_of_several_tokens() -> None:
    from rlhf_core.api import ModelConfig
    from rlhf_core.sdk import load_tokenizer
    from rlhf_plugin_report.read import _texts

    tokenizer = load_tokenizer(ModelConfig(path="pocket"))
    ids = tokenizer("Otto's café costs 3 €, 日本 🙂 fine", add_special_tokens=False).input_ids
    pieces = list(_texts(tokenizer, ids))
    assert len(pieces) == len(ids)
    assert "" in pieces
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "".join(_texts(tokenizer, ids[:-1])) == tokenizer.decode(ids[:-1])


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    from rlhf_core.api import UserError

    with pytest.raises(UserError, match="is no run"):
        CliRunner().invoke(report, [str(tmp_path)], catch_exceptions=False)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_it_without_an_error(page: str, tmp_path: Path) -> None:
    file = tmp_path / "drawn.html"
    file.write_text(page)
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--enable-logging=stderr"]
    done = subprocess.run(
        ["chromium", *flags, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "16 of 16 completions" in done.stdout
    assert done.stdout.count('class="token"') > 16
    assert "bk-Figure" in done.stdout
    errors = [line for line in done.stderr.splitlines() if ":CONSOLE" in line and "[bokeh" not in line]
    assert errors == []
