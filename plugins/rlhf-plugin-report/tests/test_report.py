"""`rlhf report`: what is on the page of a run and of several; nothing is fetched, no text is markup."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rlhf_plugin_report.page
from rlhf_core.runs import StoredRun
from rlhf_plugin_report.charts import draw
from rlhf_plugin_report.cli import report
from rlhf_plugin_report.page import fitted, render
from rlhf_plugin_report.read import PageView, read_page

from .conftest import change_rows, data_of, page_of, unpacked

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028<b>bold</b>"


def test_the_command_writes_a_page_with_curves_rollouts_and_settings(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(report, [str(run), "--output", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    for wanted in (
        "reward/mean from",
        "eval/reward/mean from",
        "completion_length/mean from",
        "time/update from",
        "median score from",
        "correlation of length and score",
        "trainer.steps",
        "versions.rlhf-core",
        "rlhf-plugin-grpo",
    ):
        assert wanted in page
    rollouts = data_of(page)
    assert len(rollouts) == 16
    assert {r["step"] for r in rollouts} == {1, 2}


def test_every_traced_token_has_its_numbers(page: str) -> None:
    with_tokens = [r for r in data_of(page) if "pieces" in r]
    assert with_tokens
    for row in with_tokens:
        assert row["text"] in "".join(row["pieces"])
        assert len(row["pieces"]) == len(row["logprobs"]) == len(row["ids"]) == row["tokens"]
        assert row["scores"][row["place"]] == row["score"], "a token's advantage is followed to its group's scores"
    updated = [r for r in with_tokens if r["advantage"]]
    assert updated
    assert all(len(r["entropies"]) == len(r["old_logprobs"]) == len(r["ref_logprobs"]) == r["tokens"] for r in updated)


def test_numbers_survive_packing(run: Path, page: str) -> None:
    traced = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    completions = [c for row in traced if row["event"] == "prompt" for c in row["completions"]]
    shown = data_of(page)
    assert [r["seed"] for r in shown] == [str(c["seed"]) for c in completions], "64 bits, not a float's 53"
    assert [r["advantage"] for r in shown] == pytest.approx([c["advantage"] for c in completions], rel=1e-4)
    assert [r["parts"] for r in shown if "parts" in r] == [c["parts"] for c in completions if c["parts"]]


def test_nothing_on_the_page_is_fetched(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page.split("<script")[0])
    assert "default-src 'none'" in page


def test_texts_of_the_run_are_text_whatever_they_hold(copy: Path) -> None:
    def poison(row: dict[str, Any]) -> None:
        for one in [row, *row.get("completions", ())]:
            one |= {key: HOSTILE for key in ("prompt", "prompt_id", "completion", "text") if key in one}
            one |= {"detail": HOSTILE, "info": {HOSTILE: HOSTILE}} if "text" in one else {}

    for name in ("trace", "samples"):
        change_rows(copy / f"{name}.jsonl", poison)
    plan = json.loads((copy / "plan.json").read_text())
    plan["config"]["model"]["path"] = HOSTILE
    (copy / "plan.json").write_text(json.dumps(plan))
    (copy / "summary.json").write_text(json.dumps({"status": "stopped", "stop_reason": HOSTILE, "warnings": [HOSTILE]}))
    page = page_of(copy)
    assert "<img" not in page.replace("&lt;img", "").split('<script type="application/json"')[0]
    assert page.count("</script>") == page.count("<script"), "no text closes a script"
    assert {(row["text"], row["detail"]) for row in data_of(page)} == {(HOSTILE, HOSTILE)}


def test_several_runs_show_the_settings_that_differ(run: Path, copy: Path) -> None:
    plan = json.loads((copy / "plan.json").read_text())
    plan["config"]["seed"] = 7
    (copy / "plan.json").write_text(json.dumps(plan))
    view = read_page([StoredRun.find(str(run)), StoredRun.find(str(copy))], 100)
    assert view.differences == [("seed", ["0", "7"])]
    page = render(view)
    assert "first: reward/mean from" in page
    assert "; second: reward/mean from" in page
    assert {row["run"] for row in data_of(page)} == {"first", "second"}


def test_a_long_trace_is_thinned_and_the_page_says_so(run: Path) -> None:
    view = read_page([StoredRun.find(str(run))], 5)
    assert len(view.runs[0].rollouts) == 5
    assert {row["step"] for row in view.runs[0].rollouts} == {1, 2}
    assert "5 of 16 completions are on this page, evenly over the trace: a page shows 5 of a run" in render(view)
    (bands,) = [c for _, charts in draw(view.runs) for c in charts if c.item["kind"] == "bands"]
    assert [len(s["step"]) for s in bands.item["series"]] == [2], "quantiles are of every completion"


def test_what_does_not_fit_is_left_out_by_a_rule_that_the_page_states(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the numbers of tokens, then completions."""
    rng = random.Random(0)
    (one,) = read_page([StoredRun.find(str(run))], 100).runs
    row = next(row for row in one.rollouts if "ids" in row)
    rows = [
        {**row, "text": f"{rng.random()} {rng.random()}", "logprobs": [-rng.random() for _ in row["ids"]]}
        for _ in range(400)
    ]
    (whole,), data = fitted([replace(one, rollouts=rows)], 10**7, {})
    assert whole.notes == []
    (view,), smaller = fitted([whole], len(data) - 3000, {})
    assert len(data) - 6000 < len(smaller) <= len(data) - 3000
    kept = sum("ids" in row for row in view.rollouts)
    assert 200 < kept < 400
    assert len(view.rollouts) == 400
    assert view.notes[0].startswith(f"token by token are {kept} of the 400 completions whose tokens")
    (view,), smaller = fitted([whole], len(data) // 4, {})
    assert len(data) // 6 < len(smaller) <= len(data) // 4
    assert 100 < len(view.rollouts) < 400
    assert view.notes[-1].startswith(f"{len(view.rollouts)} of 400 completions are on this page, evenly over the trace")
    monkeypatch.setattr(rlhf_plugin_report.page, "MOST_BYTES", 0)
    monkeypatch.setattr(rlhf_plugin_report.page, "LEAST_DATA", len(data))
    page = render(PageView([whole], []))
    assert f'<p class="note">{view.notes[0]}.</p>'.split(" are ")[0] in page
    assert len(data_of(page)) == 400


def test_a_text_of_megabytes_is_cut_and_says_so(copy: Path) -> None:
    def grow(row: dict[str, Any]) -> None:
        for one in row.get("completions", ()):
            one["text"] = "long " * 30_000

    change_rows(copy / "trace.jsonl", grow)
    texts = {row["text"] for row in data_of(page_of(copy))}
    assert texts == {f"{'long ' * 20_000} … (50000 more characters in the run's files)"}


def test_a_sound_can_be_heard_and_no_other_file_is_read(copy: Path, tmp_path: Path) -> None:
    (copy / "word.wav").write_bytes(b"RIFF0000WAVE")
    secret = tmp_path / "passwords.txt"
    secret.write_text("hunter2")

    def attach(row: dict[str, Any]) -> None:
        if "prompt" in row:
            row["media"] = [{"kind": "audio", "path": "word.wav"}, {"kind": "audio", "path": str(secret)}]

    change_rows(copy / "trace.jsonl", attach)

    def shown() -> tuple[dict[str, Any], dict[str, Any]]:
        page = page_of(copy)
        return data_of(page)[0]["media"][0], unpacked(page)[0]["files"]["second"]

    sound, files = shown()
    assert sound == {"kind": "audio", "path": "word.wav"}
    assert files["word.wav"]["url"].startswith("data:audio/")
    assert "url" not in files[str(secret)]
    (copy / "word.wav").unlink()
    assert shown()[0]["missing"] == "yes"
    (copy / "audio").mkdir()
    (copy / "audio" / "word.wav").write_bytes(b"RIFF")  # where a speech run keeps what it sampled
    assert shown()[1]["word.wav"]["url"].startswith("data:audio/")


def test_turns_of_a_completion_have_their_authors(copy: Path) -> None:
    def speak(row: dict[str, Any]) -> None:
        for one in row.get("completions", ()):
            one |= {"segments": [[0, 2, "assistant"], [2, one["tokens"], "tool"]], "info": {"calls": 1}}

    change_rows(copy / "trace.jsonl", speak)
    row = data_of(page_of(copy))[0]
    assert row["segments"] == [[0, 2, "assistant"], [2, row["tokens"], "tool"]]
    assert row["info"] == {"calls": 1}


def test_versions_of_the_weights_that_sampled_a_completion_are_on_the_page(copy: Path) -> None:
    def speak(row: dict[str, Any]) -> None:
        for one in row.get("completions", ()):
            one |= {"versions": [[0, 1, 3], [1, one["tokens"], 4]]}

    change_rows(copy / "trace.jsonl", speak)
    row = data_of(page_of(copy))[0]
    assert row["versions"] == [[0, 1, 3], [1, row["tokens"], 4]]


def test_a_run_that_cannot_be_repeated_says_so_on_its_page(copy: Path) -> None:
    assert "not exactly" not in page_of(copy)
    plan = json.loads((copy / "plan.json").read_text())
    plan["conditions"] = {"rollout x": {"in_flight": "not exactly reproducible: of time", "other": "fast"}}
    (copy / "plan.json").write_text(json.dumps(plan))
    page = page_of(copy)
    assert "not exactly reproducible: of time" in page
    assert "fast" not in page.split("<script")[0]


def test_pieces_are_the_text_also_of_characters_of_several_tokens() -> None:
    from rlhf_core.models import ModelConfig, load_tokenizer
    from rlhf_plugin_report.completions import texts_of

    tokenizer = load_tokenizer(ModelConfig(path="pocket"))
    ids = tokenizer("Otto's café costs 3 €, 日本 🙂 fine", add_special_tokens=False).input_ids
    pieces = list(texts_of(tokenizer, ids))
    assert len(pieces) == len(ids)
    assert "" in pieces
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "".join(texts_of(tokenizer, ids[:-1])) == tokenizer.decode(ids[:-1])


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    from rlhf_core.config import UserError

    with pytest.raises(UserError, match="is not a run"):
        CliRunner().invoke(report, [str(tmp_path)], catch_exceptions=False)
