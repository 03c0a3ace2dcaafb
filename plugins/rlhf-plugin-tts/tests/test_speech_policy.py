"""A speech policy in the core: its rollouts are tokens with a sound, and all else is as for text."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from untrained_voices import write_untrained_voice as untrained

from rlhf_core import train
from rlhf_core.cli import load_sampler, open_registry
from rlhf_core.cli.main import cli
from rlhf_core.data import Media, Prompt
from rlhf_core.hooks import RunStart, StepMetrics, StepRollouts
from rlhf_core.models import Formatter, ModelConfig, ModelError, load_policy
from rlhf_core.models.save import load_weights, save_model
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_tts import keep as kept_sounds
from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.sound_files import SoundFiles
from rlhf_plugin_tts.speech_data.catalogue import UNSEEN
from rlhf_plugin_tts.speech_data.compare import measure

ROWS = [
    {"prompt": [{"role": "system", "content": "slow"}, {"role": "user", "content": "Close the door."}]},
    {"prompt": "It is 9 o'clock."},
]


@pytest.fixture(autouse=True)
def _sounds_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_AUDIO", str(tmp_path / "sounds"))


def test_a_rollout_holds_its_sound(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig(path=str(untrained(tmp_path / "voice"))))
    formatter = Formatter(policy.tokenizer, "auto")
    ids = formatter.encode([{"role": "user", "content": "Hi."}])
    assert policy.tokenizer.decode(list(ids)) == "plain | hh ay . >"
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    requests = [RolloutRequest("a", ids, i, seed=i) for i in range(2)]
    first, second = engine.generate(requests, SamplingParams(max_tokens=60), 0)
    assert len(first.logprobs_T) == len(first.completion_ids)
    sample = first.sample(Prompt("a", ({"role": "user", "content": "Hi."},)))
    assert sample.media == first.media
    assert sample.media[0].kind == "audio"
    assert sample.media[0].sample_rate == 16_000
    assert sample.media[0].seconds > 0
    assert read_clip(sample).seconds == pytest.approx(sample.media[0].seconds)
    assert first.media[0].path != second.media[0].path
    again = engine.generate(requests[:1], SamplingParams(max_tokens=60), 0)[0]
    assert again.media == first.media


def test_generated_clips_are_rows_that_rewards_score(tmp_path: Path) -> None:
    voice, out = str(untrained(tmp_path / "voice")), str(tmp_path / "said.jsonl")
    asked = ["generate", "--prompt", "Close the door.", "--model", voice, "--n", "2", "--max-tokens", "40"]
    assert CliRunner().invoke(cli, [*asked, "--out", out]).exit_code == 0
    shown = CliRunner().invoke(cli, asked).output
    rows = [json.loads(line) for line in Path(out).read_text().splitlines()]
    assert all(Path(row["audio"]).is_file() and row["audio"] in shown for row in rows)
    scored = CliRunner().invoke(cli, ["reward", "score", "--reward", "duration", "--input", out])
    assert scored.exit_code == 0, scored.output


def test_a_completion_that_says_nothing_is_silence(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig(path=str(untrained(tmp_path / "voice"))))
    modality = Formatter(policy.tokenizer, "auto").modality
    assert modality is not None
    for ids in ((), (policy.tokenizer.eos_token_id,)):
        assert modality.media(ids)[0].seconds == 0.04


def test_the_text_of_a_completion_encodes_to_its_tokens(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig(path=str(untrained(tmp_path / "voice"))))
    text = "hh e3 c1 c2 ay e96 c7 c0"
    ids = Formatter(policy.tokenizer, "auto").encode_completion(text)
    assert policy.tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == policy.tokenizer.eos_token_id


def seconds(samples: list[Sample]) -> list[float]:
    return [read_clip(s).seconds for s in samples]


def page_data(run_dir: Path) -> bytes:
    """What the run's page holds, unpacked."""
    page = (run_dir / "report.html").read_text()
    packed = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', page, re.DOTALL)[0]
    return gzip.decompress(base64.b64decode(packed))


@pytest.mark.slow
def test_grpo_keeps_the_sounds_and_the_page_plays_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_REPORT", "1")
    run_dir, settings = tmp_path / "run", {"trainer.steps": 1, "trainer.rollout_batch_size": 4}
    settings |= {"trainer.group_size": 2, "trainer.sampling.max_tokens": 40, "trainer.eval_samples": 1}
    voice = str(untrained(tmp_path / "voice"))
    run = train("grpo", model=voice, dataset="speech", reward=seconds, settings=settings, run_dir=str(run_dir))
    assert run.metrics["reward/mean"].max() > 0
    files = sorted((run_dir / "audio").glob("*.flac"))
    rows = [json.loads(line) for line in (run_dir / "trace.jsonl").read_text().splitlines()]
    named = {Path(c["media"][0]["path"]).name for r in rows if r["event"] == "prompt" for c in r["completions"]}
    samples = [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]
    heldout = {Path(row["media"][0]["path"]).name for row in samples}
    assert (len(samples), named | heldout) == (2, {f.name for f in files})
    shown = [example[when] for example in run.summary["examples"] for when in ("before", "after")]
    assert {Path(place).name for place in shown} == heldout
    assert all(row["messages"][-1]["content"] == row["prompt"] for row in samples)
    assert page_data(run_dir).count(b"data:audio/") >= 4
    assert '<div id="listen">' in (run_dir / "report.html").read_text()
    final = load_policy(ModelConfig(path=str(run_dir / "final")))
    assert Formatter(final.tokenizer, "auto").modality is not None


def test_the_embedded_voice_says_what_is_asked() -> None:
    sampler = load_sampler(open_registry(), ModelConfig(path="pocket-voice"))
    tokenizer = sampler.policy.tokenizer
    asked = [Prompt(text, ({"role": "user", "content": text},)) for text in UNSEEN[:6]]
    spoken = sampler.sample(asked, SamplingParams(max_tokens=480, temperature=0), 1, 0)
    encode = Formatter(tokenizer, "auto").encode_prompt
    wanted = [phones(tokenizer.decode(list(encode(p))).partition("| ")[2]) for p in asked]
    said = [phones(rollout.text) for rollout in spoken]
    alike = np.array([[SequenceMatcher(None, w, s, autojunk=False).ratio() for w in wanted] for s in said])
    assert list(alike.argmax(1)) == list(range(6))
    assert np.diag(alike).mean() > 0.6
    assert all(0.5 < rollout.media[0].seconds < 6 for rollout in spoken)


def phones(text: str) -> list[str]:
    """Names of phones in a prompt or a completion, without pauses and codes."""
    return [name for name in text.split() if re.fullmatch("[a-z]{1,2}", name)]


@pytest.mark.slow
def test_a_recogniser_understands_the_embedded_voice() -> None:
    options = {"names": ["wer"], "settings": (), "seed": 0, "before": None, "count": 4, "description": "", "n": 1}
    table = measure("pocket-voice", {**options, "max_tokens": 480, "temperature": 0.0})["table"]
    assert table["wer/wer"]["voice"]["mean"] < 0.55


@pytest.mark.parametrize("name", ["codec.json", "codec.safetensors"])
def test_a_voice_without_its_codec_is_refused(tmp_path: Path, name: str) -> None:
    folder = untrained(tmp_path / "voice")
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"has no {name}"):
        load_policy(ModelConfig(path=str(folder)))


def test_a_codec_of_another_model_is_refused(tmp_path: Path) -> None:
    folder, other = untrained(tmp_path / "voice"), untrained(tmp_path / "other", codes=16)
    for name in ("codec.json", "codec.safetensors"):
        (folder / name).write_bytes((other / name).read_bytes())
    with pytest.raises(ModelError, match="do not fit together"):
        load_policy(ModelConfig(path=str(folder)))


def test_an_unknown_modality_names_the_plugin(tmp_path: Path) -> None:
    folder = untrained(tmp_path / "voice")
    (folder / "modality.json").write_text('{"modality": "pocket-voise"}')
    with pytest.raises(ModelError, match="pocket-voise") as error:
        load_policy(ModelConfig(path=str(folder)))
    assert "rlhf-plugin-tts" in str(error.value)


def test_sounds_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sounds = SoundFiles(tmp_path / "cache", most_bytes=3000)
    monkeypatch.setattr("rlhf_plugin_tts.sound_files.EVERY", 2)
    wave = np.random.default_rng(0).normal(0, 0.1, 800)
    media: list[Media] = [sounds.keep(f"n{i}", lambda: wave, 16_000) for i in range(7)]
    assert sum(f.stat().st_size for f in (tmp_path / "cache").iterdir()) <= 3000
    assert Path(media[-1].path).is_file()


def test_a_sound_that_another_run_removes_meanwhile_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sounds, listed = SoundFiles(tmp_path), Path.glob

    def removed(folder: Path, pattern: str) -> Iterator[Path]:
        return iter([*listed(folder, pattern), folder / "removed.flac"])

    monkeypatch.setattr(Path, "glob", removed)
    assert Path(sounds.keep("a", lambda: np.zeros(160), 16_000).path).is_file()


def rollout(prompt: str, *media: Media) -> Rollout:
    return Rollout(prompt, 0, (1,), (2,), np.zeros(1, np.float32), 0, FinishReason.EOS, "", 0, media=media)


def test_a_run_keeps_sounds_of_its_whole_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six files at most: steps are thinned evenly, the first and the latest evaluation stay, also over a restart."""
    monkeypatch.setattr(kept_sounds, "MOST_FILES", 6)
    sounds, run = SoundFiles(tmp_path / "cache"), tmp_path / "run"
    run.mkdir()

    def media(name: str) -> Media:
        return sounds.keep(name, lambda: np.full(800, 0.1), 16_000)

    keeper, samples = kept_sounds.KeepSounds(), []
    keeper.rlhf_run_start(RunStart(run, {}))
    for step in range(10):
        if step % 3 == 0:
            samples.append({"step": step, "media": [asdict(media(f"held{step}"))]})
            (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
            keeper.rlhf_eval_end(StepMetrics(step, {}))
        if step == 5:
            keeper = kept_sounds.KeepSounds()
            keeper.rlhf_run_start(RunStart(run, {}))
        keeper.rlhf_rewards_ready(StepRollouts(step + 1, [rollout("p", media(f"step{step + 1}"))], [Score(1.0)]))
    names = {file.stem for file in (run / "audio").glob("*.flac")}
    assert len(names) <= 6
    assert {"held0", "held9", "step1", "step5", "step9"} <= names


def test_the_ends_of_every_prompt_are_kept_first() -> None:
    rollouts = [rollout(p) for p in "aaaabbbb"]
    scores = [Score(v) for v in (1.0, 5.0, 2.0, 3.0, 7.0, 6.0, 6.5, 0.0)]
    assert kept_sounds.choose(rollouts, scores)[:4] == [4, 7, 1, 0]
    missing = [Score.failed(ScoreStatus.MISSING, "")] * 8
    assert kept_sounds.choose(rollouts, missing) == list(range(8))


def test_the_same_sound_is_written_once(tmp_path: Path) -> None:
    sounds = SoundFiles(tmp_path)
    first = sounds.keep("a", lambda: np.zeros(160), 16_000)
    assert sounds.keep("a", lambda: np.ones(9), 16_000) == first
    assert soundfile.info(first.path).frames == 160
    os.utime(first.path, (1, 1))
    sounds.keep("a", lambda: np.ones(9), 16_000)
    assert Path(first.path).stat().st_mtime > 1  # in use: not the next to go
    Path(first.path).write_bytes(b"fLaC of a process that was killed")
    assert sounds.keep("a", lambda: np.zeros(160), 16_000) == first


def test_a_checkpoint_of_a_voice_is_loaded_again(tmp_path: Path) -> None:
    """Its folder holds the codec's tensors beside the model's."""
    voice = untrained(tmp_path / "voice")
    (voice / "LICENSE.lexicon").write_text("Permission is granted")
    policy = load_policy(ModelConfig(path=str(voice)))
    save_model(policy.model, policy.tokenizer, tmp_path / "saved")
    assert (tmp_path / "saved" / "codec.safetensors").is_file()
    assert (tmp_path / "saved" / "LICENSE.lexicon").read_text() == "Permission is granted"
    other = load_policy(ModelConfig(path=str(untrained(tmp_path / "other", seed=1)))).model
    load_weights(other, tmp_path / "saved")
    assert all(bool((other.state_dict()[name] == tensor).all()) for name, tensor in policy.model.state_dict().items())
