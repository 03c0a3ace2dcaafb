"""`rlhf data speech`: pairs of clips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from untrained_voices import write_untrained_voice

from rlhf_core import train
from rlhf_core.cli.main import cli
from rlhf_core.config import ConfigError
from rlhf_core.models import ModelError
from rlhf_plugin_tts.pocket_voice.frontend import prompt_text
from rlhf_plugin_tts.rows import read_audio_pairs
from rlhf_plugin_tts.speech_data.catalogue import CONTRASTS, DESCRIPTIONS, SENTENCES, UNSEEN, VALIDATION, sentences
from rlhf_plugin_tts.speech_data.command import make, pairs
from rlhf_plugin_tts.speech_data.compare import measure
from rlhf_plugin_tts.speech_data.config import SpeechPromptsConfig
from rlhf_plugin_tts.speech_data.pairs import is_new
from rlhf_plugin_tts.speech_data.source import SpeechPrompts

OPTIONS: dict[str, Any] = {
    "by": "description",
    "name": None,
    "settings": (),
    "n": 2,
    "count": 2,
    "max_tokens": 24,
    "temperature": 1.0,
    "seed": 0,
}


@pytest.fixture(autouse=True)
def _sounds_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_AUDIO", str(tmp_path / "sounds"))


@pytest.fixture
def voice(tmp_path: Path) -> str:
    return str(write_untrained_voice(tmp_path / "voice"))


def test_the_voice_can_say_all_of_the_catalogue() -> None:
    assert len(SENTENCES) == len(DESCRIPTIONS) == 6
    assert len({text for _, _, text in sentences()}) == 30
    for name, _, text in sentences():
        for description in DESCRIPTIONS.values():
            assert prompt_text(text, description, name)
    assert {d for pair in CONTRASTS for d in pair} == set(DESCRIPTIONS)


def test_pairs_by_description_go_on_where_they_stopped(tmp_path: Path, voice: str) -> None:
    output = tmp_path / "pairs.jsonl"
    assert make(output, {**OPTIONS, "model": voice})["pairs"] == 6
    whole = output.read_bytes()
    progress = output.with_name("pairs.jsonl.progress.json")
    state = json.loads(progress.read_text())
    first = "".join(whole.decode().splitlines(keepends=True)[:3])
    progress.write_text(json.dumps({**state, "done": state["done"][:1], "size": len(first.encode())}))
    output.write_text(first + '{"half a r')  # what a kill leaves
    make(output, {**OPTIONS, "model": voice})
    assert output.read_bytes() == whole
    assert len(read_audio_pairs(str(output))) == 6
    row = json.loads(first.splitlines()[0])
    assert [m["role"] for m in row["prompt"]] == ["user"]
    with pytest.raises(ConfigError, match="other settings: seed"):
        make(output, {**OPTIONS, "model": voice, "seed": 1})
    write_untrained_voice(Path(voice), seed=1)  # trained on, under the same name
    with pytest.raises(ConfigError, match="other settings: weights"):
        make(output, {**OPTIONS, "model": voice})


def test_pairs_by_samples_are_ranked_by_the_reward(tmp_path: Path, voice: str) -> None:
    options = {**OPTIONS, "model": voice, "by": "samples", "name": "random", "count": 1}
    result = make(tmp_path / "pairs.jsonl", options)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert result["units"] == 6
    assert len(rows) + result["left_out"] == 6
    assert all(row["score_chosen"] > row["score_rejected"] for row in rows)
    assert {m["role"] for row in rows for m in row["prompt"]} == {"system", "user"}


def test_equal_and_repeated_pairs_are_left_out() -> None:
    seen: set[tuple[str, str]] = set()
    row = {"chosen": "e1 c1", "rejected": "e2 c2"}
    assert is_new(row, seen)
    assert not is_new(row, seen)
    assert not is_new({"chosen": "e1", "rejected": "e1"}, seen)


@pytest.mark.parametrize(("by", "name"), [("samples", None), ("description", "random")])
def test_a_reward_belongs_to_samples_only(tmp_path: Path, voice: str, by: str, name: str | None) -> None:
    with pytest.raises(ConfigError, match="ranked by a reward"):
        make(tmp_path / "p.jsonl", {**OPTIONS, "model": voice, "by": by, "name": name})


def test_a_text_model_does_not_speak(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not speak"):
        make(tmp_path / "p.jsonl", {**OPTIONS, "model": "pocket"})


def test_a_voice_is_measured_beside_itself(voice: str) -> None:
    options = {**OPTIONS, "before": voice, "names": ("duration",), "description": "slow", "count": 3, "n": 2}
    result = measure(voice, options)
    row = result["table"]["duration"]
    assert row["before"] == row["after"]
    assert row["difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert row["before"]["low"] <= row["before"]["mean"] <= row["before"]["high"]
    assert len(result["scores"]["duration"]["after"]) == 6
    trained = {text for _, _, text in sentences()}
    assert len({*UNSEEN, *VALIDATION} - trained) == 60
    heldout = [row["prompt"][-1]["content"] for row in SpeechPrompts(SpeechPromptsConfig()).rows("heldout")]
    assert heldout == list(VALIDATION)


@pytest.mark.slow
def test_several_processes_score_the_same(voice: str) -> None:
    options = {**OPTIONS, "before": voice, "names": ("duration",), "description": "", "count": 3, "n": 2}
    one = measure(voice, options)["scores"]
    assert measure(voice, {**options, "jobs": 2})["scores"] == one
    settings = ["speech:parts.words.reward=duration", "speech:parts.words.normalise=zscore"]
    with pytest.raises(ConfigError, match="learns from what it scores"):
        measure(voice, {**options, "names": ("speech",), "settings": settings, "jobs": 2})


def test_data_generate_speech_is_data_speech(tmp_path: Path, voice: str) -> None:
    args = ["--model", voice, "--count", "1", "--max-tokens", "12", "--json", "--output"]
    written = []
    for words in (("data", "generate", "speech"), ("data", "speech"), ("tts", "pairs")):
        output = tmp_path / f"{words[-2]}-{words[-1]}.jsonl"
        assert CliRunner().invoke(cli, [*words, *args, str(output)]).exit_code == 0
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        written.append([(row["chosen"], row["rejected"]) for row in rows])
    assert written[0] == written[1] == written[2] != []
    refused = CliRunner().invoke(cli, ["data", "generate", "filter", "--output", str(tmp_path / "x")])
    assert refused.exit_code != 0


@pytest.mark.slow
def test_dpo_learns_from_the_pairs(tmp_path: Path, voice: str) -> None:
    output = tmp_path / "pairs.jsonl"
    args = ["--model", voice, "--output", str(output), "--count", "2", "--max-tokens", "24", "--json"]
    assert CliRunner().invoke(pairs, args).exit_code == 0
    settings = {"trainer.epochs": 8, "trainer.optimizer.learning_rate": 1e-2}
    run = train("dpo", model=voice, dataset=str(output), settings=settings, run_dir=str(tmp_path / "run"))
    losses = run.metrics["loss"]
    assert losses.iloc[-1] < losses.iloc[0]
    assert (tmp_path / "run" / "final" / "codec.safetensors").is_file()
