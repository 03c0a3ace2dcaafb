"""Parler-TTS as a stream of tokens: the package's own cross-entropy, exact sampling, training from the command."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from untrained_voices import write_untrained_parler

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError
from rlhf_core.models import Formatter, ModelConfig, ModelError, load_policy
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.training import completion_logprobs
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_tts.code_stream.make import make_stream_voice
from rlhf_plugin_tts.parler.config import ParlerConfig
from rlhf_plugin_tts.parler.stream import ParlerStream
from tests.fixtures import parler_reference as recipe

RECORDED = json.loads((Path(__file__).parent / "data" / "parler_tts_0.2.3.json").read_text())


@pytest.fixture(autouse=True)
def _sounds_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_AUDIO", str(tmp_path / "sounds"))


def make(tmp_path: Path, **settings: Any) -> Any:
    """A policy of an untrained model."""
    model, codec = write_untrained_parler(tmp_path)
    make_stream_voice("parler", str(model), str(codec), tmp_path / "voice", descriptions=str(model), **settings)
    return load_policy(ModelConfig(path=str(tmp_path / "voice")))


@pytest.mark.parametrize("kind", ["sinusoidal", "rope"])
def test_the_sum_over_codebooks_is_the_packages_cross_entropy(kind: str) -> None:
    decoder = {**recipe.DECODER, "rope_embeddings": kind == "rope"}
    config = ParlerConfig(vocab_size=40, text_encoder=recipe.TEXT, audio_encoder=recipe.AUDIO, decoder=decoder)
    model = ParlerStream(config).eval()
    assert sorted(model.state_dict()) == RECORDED[kind]["names"]
    recipe.fill(model.state_dict())
    about, text = ([i + config.first_piece for i in ids] for ids in (recipe.DESCRIPTION, recipe.PROMPT))
    codes = [code for step in recipe.delayed() for code in step]
    prompt = [*about, model.sep, *text, model.start]
    with torch.no_grad():
        logprobs = completion_logprobs(model, [prompt, prompt[3:]], [[*codes, model.end], codes[:5]]).logprobs_BT
    books = recipe.DECODER["num_codebooks"]
    losses = [-float(logprobs[0, k : len(codes) : books].sum()) for k in range(books)]
    assert losses == pytest.approx(RECORDED[kind]["codebook_losses"], rel=1e-5)
    assert float(logprobs[0, len(codes)]) == 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_what_is_sampled_has_its_logprob(tmp_path: Path, temperature: float) -> None:
    policy = make(tmp_path)
    formatter = Formatter(policy.tokenizer, "auto")
    said = [("low", "hi."), ("a deep voice", "open the door."), ("low", "no")]
    prompts = [formatter.encode([{"role": "system", "content": v}, {"role": "user", "content": t}]) for v, t in said]
    requests = [RolloutRequest(str(i), prompts[i % 3], i, seed=i, max_tokens=20 + 9 * i) for i in range(9)]
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context, max_concurrent=4)
    rollouts = engine.generate(requests, SamplingParams(max_tokens=120, temperature=temperature), 0)
    again = completion_logprobs(
        policy.model, [r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], temperature=temperature
    )
    for row, rollout in zip(again.logprobs_BT, rollouts, strict=True):
        assert abs(row[: len(rollout.logprobs_T)].detach().numpy() - rollout.logprobs_T).max() < 2e-4
    alone = NativeEngine(policy.model, policy.tokenizer, policy.context)
    (single,) = alone.generate(requests[4:5], SamplingParams(max_tokens=120, temperature=temperature), 0)
    assert single.completion_ids == rollouts[4].completion_ids
    assert len({len(r.completion_ids) for r in rollouts}) > 4


def test_the_delay_is_undone_and_the_stream_ends(tmp_path: Path) -> None:
    policy = make(tmp_path)
    modality: Any = Formatter(policy.tokenizer, "auto").modality
    begin, end = 17, 16
    steps = [[3, begin], [5, 4], [end, 6], [end, end]]
    ids = [*(code for step in steps for code in step), modality.marks[0]]
    assert modality.frames(ids) == [[3, 4], [5, 6]]
    assert modality.frames(ids[:4]) == [[3, 4]]
    assert modality.completion_ids(modality.completion_text(ids)) == ids[:-1]
    prompt = modality.prompt_ids([{"role": "system", "content": "low"}, {"role": "user", "content": "hi"}])
    with torch.no_grad():
        logprobs = completion_logprobs(policy.model, [prompt], [ids]).logprobs_BT[0]
    assert (logprobs == 0).nonzero().flatten().tolist() == [1, 6, 8]  # dictated by the pattern
    with pytest.raises(DatasetError, match="needs a description"):
        modality.prompt_ids([{"role": "user", "content": "hi"}])


def test_learning_the_first_codebook_alone_leaves_the_other_heads(tmp_path: Path) -> None:
    policy = make(tmp_path, learn="first")
    modality: Any = Formatter(policy.tokenizer, "auto").modality
    prompt = modality.prompt_ids([{"role": "system", "content": "low"}, {"role": "user", "content": "hi"}])
    completion_logprobs(policy.model, [prompt], [[3, 17, 5, 4, 7, 6]]).logprobs_BT.sum().backward()
    first, second = policy.model.decoder["lm_heads"]
    assert first.weight.grad.abs().sum() > 0
    assert second.weight.grad is None or second.weight.grad.abs().sum() == 0


def test_what_is_no_parler_is_refused(tmp_path: Path) -> None:
    model, codec = write_untrained_parler(tmp_path)
    with pytest.raises(ModelError, match="is a dac, not Parler-TTS"):
        make_stream_voice("parler", str(codec), str(codec), tmp_path / "out")
    config = json.loads((model / "config.json").read_text())
    config["decoder"]["num_codebooks"] = 3
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="3 codebooks of 16 codes, the codec 2"):
        make_stream_voice("parler", str(model), str(codec), tmp_path / "out", descriptions=str(model))


def test_another_training_of_the_codec_does_not_get_the_first_ones_sounds(tmp_path: Path) -> None:
    model, codec = write_untrained_parler(tmp_path)
    weights = codec / "model.safetensors"
    paths = []
    for n in range(2):
        make_stream_voice("parler", str(model), str(codec), tmp_path / f"voice{n}", descriptions=str(model))
        policy = load_policy(ModelConfig(path=str(tmp_path / f"voice{n}")))
        paths.append(Formatter(policy.tokenizer, "auto").modality.media([1, 2, 3])[0].path)
        state = {name: value * 2 for name, value in load_file(weights).items()}
        weights.unlink()  # a link: the first voice's must not change
        save_file(state, weights, metadata={"format": "pt"})
    assert paths[0] != paths[1]


def test_a_tokenizer_that_needs_the_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, codec = write_untrained_parler(tmp_path)
    (model / "tokenizer.json").unlink()
    (model / "spiece.model").write_bytes(b"")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "sentencepiece" else find(n, *a))
    with pytest.raises(ConfigError, match="sentencepiece") as refused:
        make_stream_voice("parler", str(model), str(codec), tmp_path / "voice", descriptions=str(model))
    assert "rlhf-plugin-tts[parler]" in str(refused.value)
    assert not (tmp_path / "voice").exists()
