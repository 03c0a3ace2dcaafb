"""`rlhf tts train-reward`: clips never on both sides, accuracy on unheard ones, the control, and what was saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile

from rlhf_core.config import Registry
from rlhf_core.data import DatasetError
from rlhf_core.models import ModelError
from rlhf_plugin_tts.rows import AudioPair, digest, disjoint_split, groups_of, refuse_shared
from rlhf_testing import make_context

Voice = Callable[..., Path]


@pytest.fixture
def pairs_file(tmp_path: Path, voice: Voice) -> Path:
    """Twenty pairs: the clip with less noise is preferred, whatever its pitch."""
    rows = []
    for i in range(20):
        names = f"clips/{i}{'x' * (i % 5)}a.wav", f"clips/{i}{'x' * (i % 7)}b.wav"
        voice(names[0], hz=100 + 9 * i, noise=0.05 + 0.01 * (i % 3), seconds=0.6)
        voice(names[1], hz=280 - 9 * i, noise=0.4 + 0.05 * (i % 4), seconds=0.6)
        rows.append({"prompt": "Hi", "chosen_audio": names[0], "rejected_audio": names[1]})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "pairs.jsonl"


def build(name: str, path: Path, **settings: Any) -> Any:
    registry = Registry(disabled=())
    config = registry.load("reward", name).model_validate({"path": str(path), **settings})
    ctx = make_context(registry=registry)
    config.preflight(ctx)
    return config.build(ctx)


def test_the_command_trains_what_the_reward_loads(rlhf: Any, pairs_file: Path, spoken: Any, tmp_path: Path) -> None:
    done = rlhf("tts", "train-reward", "--pairs", pairs_file, "--output", tmp_path / "taste", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["heldout"]["accuracy"] == 1.0
    assert (result["heldout"]["pairs"], result["train_pairs"]) == (4, 16)
    row = json.loads(pairs_file.read_text().splitlines()[0])
    reward = build("audio_feature_model", tmp_path / "taste")
    chosen, rejected = reward.score([spoken(tmp_path / row[c]) for c in ("chosen_audio", "rejected_audio")])
    assert chosen.value > rejected.value
    with pytest.raises(ModelError, match="model for 'audio_feature_model'"):
        build("audio_encoder_model", tmp_path / "taste")


def test_labels_by_chance_teach_little() -> None:
    import torch

    from rlhf_plugin_tts.training import HeadSettings, train_head

    vectors = torch.randn(300, 2, 4, generator=torch.Generator().manual_seed(0))
    vectors[:, 0, 0] += 2.0
    margins = []
    for chance in (False, True):
        head = train_head(vectors, HeadSettings(random_labels=chance))
        margins.append(float((head(vectors[:, 0]) - head(vectors[:, 1])).mean().detach()))
    assert margins[0] > 2.0
    assert abs(margins[1]) < 0.3


def test_a_value_that_never_varied_in_training_counts_nothing() -> None:
    import torch

    from rlhf_plugin_tts.training import HeadSettings, train_head

    pairs = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(0))
    pairs[:, :, 1] = 0.7
    head = train_head(pairs, HeadSettings(epochs=1))
    usual, odd = torch.zeros(1, 3), torch.tensor([[0.0, 0.9, 0.0]])
    usual[0, 1] = 0.7
    with torch.inference_mode():
        assert head(usual) == head(odd)
        assert head(usual) != head(usual + torch.tensor([[1.0, 0.0, 0.0]]))


def test_a_clip_in_training_and_test_is_refused(rlhf: Any, pairs_file: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    shared.write_text("\n".join(pairs_file.read_text().splitlines()[:2]) + "\n")
    refused = rlhf(
        "tts", "train-reward", "--pairs", pairs_file, "--heldout-pairs", shared, "--output", tmp_path / "taste"
    )
    assert refused.code == 2
    assert "is in the training pairs and in the held-out ones" in refused.err
    assert "line 1" in refused.err
    assert not (tmp_path / "taste").exists()


def test_a_clip_in_another_format_is_the_same_clip(tmp_path: Path, voice: Voice) -> None:
    files = [voice(f"{hz}.wav", hz=hz, seconds=0.5) for hz in (100, 150, 200)]
    samples, rate = soundfile.read(files[0])
    soundfile.write(tmp_path / "copy.flac", samples, rate)
    train = [AudioPair(files[0], files[1], "line 1")]
    with pytest.raises(DatasetError, match="is in the training pairs"):
        refuse_shared(train, [AudioPair(files[2], tmp_path / "copy.flac", "line 2")])
    soundfile.write(tmp_path / "faster.wav", samples, 2 * rate)
    refuse_shared(train, [AudioPair(files[2], tmp_path / "faster.wav", "line 2")])


def test_pairs_that_hang_together_stay_together(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.wav" for i in range(9)]
    for i, file in enumerate(files):
        file.write_text(str(i))
    (tmp_path / "copy.wav").write_text("1")  # the same clip under another name
    chain = [(0, 1), (2, 3), (4, 5), (6, 7), (7, 8)]
    pairs = [AudioPair(files[a], files[b], f"line {i}") for i, (a, b) in enumerate(chain)]
    pairs.append(AudioPair(tmp_path / "copy.wav", files[3], "line 6"))
    assert len(set(groups_of(pairs))) == 3
    for seed in range(5):
        train, heldout = disjoint_split(pairs, 0.3, seed)
        assert len(train) + len(heldout) == len(pairs)
        clips = [{digest(p) for pair in side for p in (pair.chosen, pair.rejected)} for side in (train, heldout)]
        assert not clips[0] & clips[1]
        refuse_shared(train, heldout)
    with pytest.raises(DatasetError, match="hang together"):
        disjoint_split(pairs[3:5], 0.3, 0)


@pytest.mark.slow
def test_a_frozen_encoder_hears_instead_of_features(rlhf: Any, pairs_file: Path, spoken: Any, tmp_path: Path) -> None:
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    torch.manual_seed(0)
    tiny = Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(16, 16, 16),
        conv_kernel=(10, 8, 4),
        conv_stride=(8, 8, 5),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )
    Wav2Vec2Model(tiny).save_pretrained(tmp_path / "encoder")
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(pairs_file.read_text().splitlines()[:15]) + "\n")
    out, run = tmp_path / "heard", tmp_path / "run"
    done = rlhf("tts", "train-reward", "--pairs", few, "--encoder", tmp_path / "encoder", "--output", out, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["heldout"]["accuracy"] > 0.6  # white noise is easily heard, even by random weights
    encoder = f"trainer.encoder={tmp_path / 'encoder'}"
    trained = rlhf("train", "--algo", "audio_reward_model", "--dataset", few, "--run-dir", run, "--set", encoder)
    assert trained.code == 0, trained.err
    row = json.loads(few.read_text().splitlines()[3])
    sides = [spoken(tmp_path / row[c]) for c in ("chosen_audio", "rejected_audio")]
    for folder in (out, run / "final"):
        chosen, rejected = build("audio_encoder_model", folder).score(sides)
        assert chosen.value > rejected.value
    (together, _) = build("audio_encoder_model", out, also=[str(run / "final")]).score(sides)
    assert together.parts["member_1"] == build("audio_encoder_model", run / "final").score(sides)[0].value


def test_an_ensemble_of_trained_models_doubts_what_its_members_disagree_on(
    tmp_path: Path, voice: Voice, spoken: Any
) -> None:
    import torch

    from rlhf_plugin_tts.trained import Head
    from rlhf_plugin_tts.training import HeadSettings, save

    places = []
    for seed in range(3):
        torch.manual_seed(seed)
        places.append(tmp_path / f"member{seed}")
        save(Head(9, 4), places[-1], "features", "", HeadSettings(hidden=4), {})
    clip = spoken(voice("a.wav"))
    alone = [build("audio_feature_model", place).score([clip])[0].value for place in places]
    also = [str(place) for place in places[1:]]
    (score,) = build("audio_feature_model", places[0], also=also, uncertainty_penalty=2.0).score([clip])
    mean = sum(alone) / 3
    std = (sum((v - mean) ** 2 for v in alone) / 3) ** 0.5
    assert std > 0.01
    assert score.value == pytest.approx(mean - 2 * std, abs=1e-6)
    assert [score.parts[f"member_{i}"] for i in range(3)] == pytest.approx(alone)
    with pytest.raises(ModelError, match="holds no audio reward model"):
        build("audio_feature_model", places[0], also=[str(tmp_path / "none")])


def test_rewards_are_evaluated_on_pairs_of_clips(rlhf: Any, pairs_file: Path) -> None:
    options = ["--reward", "acoustic_proxy", "--set", 'weights={"hnr": 1.0}', "--pairs", pairs_file, "--json"]
    done = rlhf("reward", "evaluate", *options)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["data"]["pairs"] == 20
    assert report["rewards"]["acoustic_proxy"]["accuracy"] == 1.0
    assert set(report["rewards"]["acoustic_proxy"]["probes"]) == {"batch"}
    pairs_file.write_text(pairs_file.read_text().replace("clips/3", "gone/3", 1))
    report = json.loads(rlhf("reward", "evaluate", *options).out)["rewards"]["acoustic_proxy"]
    assert (report["accuracy"], report["missing"]["missing"]) == (1.0, 1)
    pairs_file.write_text(pairs_file.read_text().replace("clips/", "gone/"))
    refused = rlhf("reward", "evaluate", *options)
    assert refused.code == 1
    assert "no such file" in refused.err


def test_the_ordinary_command_trains_what_rewards_load(
    rlhf: Any, pairs_file: Path, spoken: Any, tmp_path: Path
) -> None:
    run, shared = tmp_path / "run", tmp_path / "shared.jsonl"
    asked = ["train", "--algo", "audio_reward_model", "--dataset", pairs_file, "--run-dir", run]
    shared.write_text("\n".join(pairs_file.read_text().splitlines()[:2]) + "\n")
    refused = rlhf(*asked, "--set", f"dataset.heldout_path={shared}")
    assert refused.code == 2
    assert "is in the training pairs and in the held-out ones" in refused.err
    done = rlhf(*asked)
    assert done.code == 0, done.err
    row = json.loads(pairs_file.read_text().splitlines()[0])
    reward = build("audio_feature_model", run / "final")
    chosen, rejected = reward.score([spoken(tmp_path / row[c]) for c in ("chosen_audio", "rejected_audio")])
    assert chosen.value > rejected.value
    summary = json.loads((run / "summary.json").read_text())
    assert "eval/accuracy" in json.dumps(summary)
    judged = ["--reward", "audio_feature_model", "--set", f"path={run / 'final'}", "--pairs", pairs_file, "--json"]
    report = rlhf("reward", "evaluate", *judged)
    assert report.code == 0, report.err
    assert json.loads(report.out)["rewards"]["audio_feature_model"]["accuracy"] > 0.9


def test_the_run_standardises_as_the_command_and_says_how_it_was_trained(tmp_path: Path) -> None:
    from types import SimpleNamespace

    import torch

    from rlhf_plugin_tts.reward_task import AudioRewardTask, standardised
    from rlhf_plugin_tts.reward_trainer import AudioRewardModelConfig

    pairs = [torch.cat([torch.randn(2, 8), torch.full((2, 1), 0.25)], 1) for _ in range(20)]
    head = standardised(torch.stack(pairs).flatten(0, 1), 0)
    seen = torch.tensor([[0.0] * 8 + [0.25], [0.0] * 8 + [0.2501]])
    first, second = head(seen).tolist()
    assert first == second
    task = AudioRewardTask.__new__(AudioRewardTask)
    task.config = AudioRewardModelConfig(random_labels=True)
    ctx: Any = SimpleNamespace(seed=7)
    task.ctx, task.head = ctx, head
    task.config = task.config.model_copy(update={"hidden": 0})
    task.write_final(tmp_path / "model", {})
    training = json.loads((tmp_path / "model" / "audio_reward.json").read_text())["training"]
    assert (training["random_labels"], training["seed"]) == (True, 7)
