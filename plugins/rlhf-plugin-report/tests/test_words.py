"""Titles in words, groups that begin open, and counts that are explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_plugin_report.charts import SPREAD, draw
from rlhf_plugin_report.read import read_page
from rlhf_plugin_report.stored import open_run
from rlhf_plugin_report.words import known, words_of

from .conftest import page_of


def test_what_matters_is_open_and_every_title_is_words(copy: Path) -> None:
    charts = draw(read_page([open_run(str(copy))], 100).runs)
    opened = {chart.metric for group, of_group in charts if group.open and group != SPREAD for chart in of_group}
    assert {"reward/mean", "eval/reward/mean", "kl", "completion_length/mean", "entropy", "loss"} <= opened
    titles = [chart.item["title"] for _, of_group in charts for chart in of_group]
    assert len(titles) > 20
    assert not [title for title in titles if "/" in title or "_" in title]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("completion_length/mean", "Completion length: mean (tokens)"),
        ("eval/reward/mean", "Reward, held out"),
        ("reward/part/member_0", "Part of the reward: member 0"),
        ("time/forward_check", "Seconds of a step: forward check"),
        ("acme/new_thing", "Acme, new thing"),
    ],
)
def test_a_metric_in_words(metric: str, words: str) -> None:
    assert words_of(metric) == words


def test_constant_groups_are_explained_where_they_are_red(copy: Path) -> None:
    summary = json.loads((copy / "summary.json").read_text())
    summary["dropped"] = {"constant_groups": 3, "scores_error": 2, "acme_rows": 1}
    (copy / "summary.json").write_text(json.dumps(summary))
    page = page_of(copy)
    assert "<li>constant groups: 3 (prompts whose completions all got the same score." in page
    assert "<li>scores error: 2 (completions whose scoring failed." in page
    assert "<li>acme rows: 1</li>" in page
    assert all(text[0].islower() for text in known()["counts"].values())
