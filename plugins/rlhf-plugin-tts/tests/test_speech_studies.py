"""What the studies of speech training read from runs and from measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import open_registry
from rlhf_core.config.load import validate
from scripts.bench import _speech_voices as speech_voices
from scripts.bench import speech_hacking


def test_the_curves_hold_every_step_and_where_the_monitor_was_alarmed(tmp_path: Path) -> None:
    keys = list(speech_hacking.WATCHED.values())
    rows: list[dict[str, Any]] = []
    for step in range(1, 5):
        rows += [{"step": step, **dict.fromkeys(keys[:3], float(step))}, {"step": step, keys[3]: 2.5 - step}]
        rows += [{"step": step, "hacking/level": float(step > 2)}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = speech_hacking.curves(tmp_path)
    assert line["DistillMOS"] == [1.5, 0.5, -0.5, -1.5]
    assert (line["first alarm"], line["alarms"]) == ((3, "WARNING"), {3: "WARNING", 4: "WARNING"})


@pytest.mark.parametrize("arm", ["single", "composite"])
def test_the_monitor_hears_what_no_arm_learns_from(arm: str) -> None:
    config = validate(open_registry(), speech_hacking.configuration(arm, 4, 16, 0, 1))
    (monitor,) = config.monitors
    second: Any = monitor
    assert second.divergence.second.name == "distillmos"
    assert "distillmos" not in config.reward.model_dump_json()


def test_a_scorer_falls_where_its_whole_interval_is_for_the_worse() -> None:
    before = {"distillmos": [3.0, 3.1] * 10, "wer/wer": [0.5, None] * 10}
    after = {"distillmos": [2.5, 2.7] * 10, "wer/wer": [0.8, 0.9] * 10}
    assert speech_voices.change("distillmos", before, after, 2)["worse"]
    assert speech_voices.change("wer/wer", before, after, 2)["worse"]
    assert not speech_voices.change("distillmos", after, before, 2)["worse"]
    assert not speech_voices.change("wer/wer", after, before, 2)["worse"]


def test_scores_of_other_sentences_are_not_taken_for_these(tmp_path: Path) -> None:
    asked = {"texts": ["Hi."], "names": ["duration"], "n": 1, "temperature": 1.0}
    (tmp_path / "kept.json").write_text(json.dumps({"asked": asked, "scores": {"duration": [0.5]}}))
    assert speech_voices.heard(tmp_path / "kept.json", "none", ["Hi."], ["duration"], 1) == {"duration": [0.5]}
    with pytest.raises(SystemExit, match="other sentences"):
        speech_voices.heard(tmp_path / "kept.json", "none", ["Ho."], ["duration"], 1)
