"""Dia and CSM as streams of tokens: transformers' own probabilities, exact sampling, training from the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CsmForConditionalGeneration, DiaForConditionalGeneration, DiaProcessor, DynamicCache
from untrained_voices import untrained_codec, untrained_csm, untrained_dia, write_untrained_parler

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError
from rlhf_core.models import Formatter, ModelConfig, ModelError, load_policy
from rlhf_core.models.save import save_model
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.training import completion_logprobs
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_tts.code_stream.make import make_stream_voice

UNTRAINED = {"dia": untrained_dia, "csm": untrained_csm, "parler": write_untrained_parler}


@pytest.fixture(autouse=True)
def _sounds_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_AUDIO", str(tmp_path / "sounds"))


def make(kind: str, tmp_path: Path, **settings: Any) -> Any:
    """A policy of an untrained model."""
    model, codec = (str(folder) for folder in UNTRAINED[kind](tmp_path))
    if kind == "parler":
        make_stream_voice("parler", model, codec, tmp_path / "voice", descriptions=model, voice="low", **settings)
    else:
        make_stream_voice(kind, model, codec, tmp_path / "voice", **settings)
    return load_policy(ModelConfig(path=str(tmp_path / "voice")))


def modality_of(policy: Any) -> Any:
    return Formatter(policy.tokenizer, "auto").modality


def prompt_of(policy: Any, text: str) -> list[int]:
    return modality_of(policy).prompt_ids([{"role": "user", "content": text}])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dia", "csm"])
def test_what_is_sampled_has_its_logprob_and_a_sound(tmp_path: Path, kind: str) -> None:
    policy = make(kind, tmp_path)
    prompts = [prompt_of(policy, text) for text in ("hi.", "open the door.", "no")]
    requests = [RolloutRequest(str(i), prompts[i % 3], i, seed=i, max_tokens=20 + 9 * i) for i in range(9)]
    sampling = SamplingParams(max_tokens=120, temperature=0.7)
    rollouts = NativeEngine(policy.model, policy.tokenizer, policy.context, max_concurrent=4).generate(
        requests, sampling, 0
    )
    again = completion_logprobs(
        policy.model, [r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], temperature=0.7
    )
    for row, rollout in zip(again.logprobs_BT, rollouts, strict=True):
        assert abs(row[: len(rollout.logprobs_T)].detach().numpy() - rollout.logprobs_T).max() < 1e-4
        assert rollout.media[0].seconds > 0
        kept = [i for i in rollout.completion_ids if i != policy.tokenizer.eos_token_id]
        assert modality_of(policy).completion_ids(rollout.text) == kept
    alone = NativeEngine(policy.model, policy.tokenizer, policy.context)
    assert alone.generate(requests[4:5], sampling, 0)[0].completion_ids == rollouts[4].completion_ids
    assert len({len(r.completion_ids) for r in rollouts}) > 4


@pytest.mark.parametrize("kind", ["dia", "csm", "parler"])
def test_a_clip_that_was_begun_goes_on_from_the_midst_of_a_frame(tmp_path: Path, kind: str) -> None:
    policy = make(kind, tmp_path)
    begun = [*prompt_of(policy, "hi."), *([3, 4, 5] if kind == "csm" else [3, 17 + (kind == "dia"), 5])]
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    (rollout,) = engine.generate([RolloutRequest("a", begun, 0, seed=3)], SamplingParams(max_tokens=14), 0)
    with torch.no_grad():
        again = completion_logprobs(policy.model, [begun], [rollout.completion_ids]).logprobs_BT[0]
    assert abs(again.numpy() - rollout.logprobs_T).max() < 1e-4


def test_a_frame_costs_one_position_of_the_cache(tmp_path: Path) -> None:
    policy = make("parler", tmp_path)
    cache: Any = DynamicCache(config=policy.model.config)
    ids = torch.tensor([prompt_of(policy, "hi.")])
    with torch.no_grad():
        policy.model(input_ids=ids, past_key_values=cache, use_cache=True)
        before = cache.layers[0].most
        for code in (3, 17, 5, 4, 7, 6):
            policy.model(input_ids=torch.tensor([[code]]), past_key_values=cache, use_cache=True)
    assert (cache.get_seq_length(), cache.layers[0].most) == (ids.shape[1] + 6, before + 3)


def test_probabilities_of_dia_are_the_models_own_among_what_its_sampler_allows(tmp_path: Path) -> None:
    policy = make("dia", tmp_path)
    own: Any = DiaForConditionalGeneration.from_pretrained(tmp_path / "dia").eval()
    text = modality_of(policy).texts[0]("[S1] hi.", return_tensors="pt").input_ids
    frames = [[3, 1], [1, 5], [2, 6], [3, 5], [9, 7]]
    begin, end, pad, late = 18, 16, 17, 3
    codes = torch.tensor([[begin] * 2, *frames, [end] * 2, *[[pad] * 2] * late])[None]
    pattern = DiaProcessor.build_indices(1, codes.shape[1], 2, [0, late])
    delayed = DiaProcessor.apply_audio_delay(codes, pad, begin, pattern)
    with torch.no_grad():
        logits = own(input_ids=text, decoder_input_ids=delayed).logits  # [K, S, V]
    ids = [*delayed[0, 1:].flatten().tolist(), policy.model.end]
    with torch.no_grad():
        got = completion_logprobs(policy.model, [prompt_of(policy, "hi.")], [ids]).logprobs_BT[0]
    for frame, (first, second) in enumerate(frames):
        for k, code in enumerate((first, second)):
            step = frame + late * k
            want = logits[k, step, : end + (k == 0)].log_softmax(-1)[code]
            assert float(got[2 * step + k]) == pytest.approx(float(want), abs=1e-5)
    assert float(got[2 * 5]) == pytest.approx(float(logits[0, 5, : end + 1].log_softmax(-1)[end]), abs=1e-5)
    dictated = [1, 3, 5, 12, 14, 16, 17, 18]  # beginnings, padding, the second codebook's end, the stream's
    assert (got == 0).nonzero().flatten().tolist() == dictated
    assert modality_of(policy).frames(ids) == frames


def test_the_sum_over_codebooks_is_the_loss_of_csm(tmp_path: Path) -> None:
    policy = make("csm", tmp_path)
    own: Any = CsmForConditionalGeneration.from_pretrained(tmp_path / "csm").eval()
    frames = torch.tensor([[3, 1], [0, 5], [2, 0], [0, 0]])  # the last one ends the clip
    text = modality_of(policy).texts[0]("<|begin_of_text|>[0]hi.<|end_of_text|>", return_tensors="pt").input_ids
    with torch.no_grad():
        embedded = torch.cat([own.embed_text_tokens(text), own.backbone_model.embed_tokens(frames[None])], 1)
        labels = torch.cat([torch.full((1, text.shape[1], 2), -100), frames[None]], 1)
        out = own(inputs_embeds=embedded, labels=labels)
        prompt, ids = prompt_of(policy, "hi."), [*frames.flatten().tolist(), policy.model.end]
        got = completion_logprobs(policy.model, [prompt, prompt[2:]], [ids, ids[:3]]).logprobs_BT[0]
    assert -float(got[0:8:2].sum()) == pytest.approx(4 * float(out.backbone_loss), rel=1e-5)
    assert -float(got[1:8:2].sum()) == pytest.approx(4 * float(out.depth_decoder_loss), rel=1e-5)
    assert float(got[8]) == 0
    assert modality_of(policy).frames(ids) == frames[:-1].tolist()


@pytest.mark.parametrize("kind", ["dia", "csm"])
def test_what_is_saved_is_a_model_of_transformers(tmp_path: Path, kind: str) -> None:
    policy = make(kind, tmp_path, learn="first")
    saved = tmp_path / "saved"
    save_model(policy.model, policy.tokenizer, saved)
    own: Any = (DiaForConditionalGeneration if kind == "dia" else CsmForConditionalGeneration).from_pretrained(saved)
    state = policy.model.state_dict()
    assert {n for n in own.state_dict() if not n.startswith("codec_model.")} == set(state)
    assert all(bool((own.state_dict()[name] == tensor).all()) for name, tensor in state.items())
    again = load_policy(ModelConfig(path=str(saved)))
    prompt = prompt_of(again, "hi.")
    assert prompt == prompt_of(policy, "hi.")
    completion_logprobs(again.model, [prompt], [[3, 18, 5, 4, 7, 6]]).logprobs_BT[:, 1::2].sum().backward()
    gradients = [p.grad.abs().max() for p in again.model.parameters() if p.grad is not None]
    assert max(gradients, default=0) == 0  # only the first codebook's logprobs have one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "algo"),
    [
        ("parler", "dpo"),
        ("dia", "grpo"),
        ("csm", "grpo"),
        pytest.param("dia", "dpo", marks=pytest.mark.long),
        pytest.param("csm", "dpo", marks=pytest.mark.long),
    ],
)
def test_trains_from_the_command(rlhf: Any, tmp_path: Path, kind: str, algo: str) -> None:
    model, codec = UNTRAINED[kind](tmp_path)
    more = ["--voice", "calm", "--description-tokenizer", model] if kind == "parler" else []
    done = rlhf(
        "tts", "voice", "--model", model, "--codec", codec, "--like", kind, "--output", tmp_path / "voice", *more
    )
    assert done.code == 0, done.err
    rows: list[dict[str, Any]] = [{"prompt": "open the door."}, {"prompt": "close it."}]
    settings = ["--reward", "duration", "--set", "trainer.steps=1", "--set", "trainer.rollout_batch_size=4"]
    settings += ["--set", "trainer.group_size=2", "--set", "trainer.eval_samples=0"]
    settings += ["--set", "trainer.sampling.max_tokens=60", "--set", "trainer.max_missing_fraction=1"]
    if algo == "dpo":
        chosen, rejected = (" ".join(f"c{(n + i) % 16}" for i in range(24)) for n in (1, 2))
        rows = [{**row, "chosen": chosen, "rejected": rejected} for row in rows * 2]
        settings = ["--set", "trainer.max_steps=1", "--set", "model.lora.r=2"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--dataset", tmp_path / "rows.jsonl", "--run-dir", tmp_path / "run"]
    run = rlhf("train", "--algo", algo, "--model", tmp_path / "voice", *where, *settings)
    assert run.code == 0, run.err
    final, out = tmp_path / "run" / "final", tmp_path / "said.jsonl"
    said = rlhf("generate", "--prompt", "hi.", "--model", final, "--max-tokens", "40", "--out", out)
    assert said.code == 0, said.err
    assert Path(json.loads(out.read_text())["audio"]).is_file()
    written = json.loads((final / "config.json").read_text())
    assert written["model_type"] == ("parler_tts" if kind == "parler" else kind)


def test_what_dia_and_csm_cannot_say_is_refused(tmp_path: Path) -> None:
    dia, csm = make("dia", tmp_path / "a"), make("csm", tmp_path / "b", voice="1")
    turns = [{"role": "system", "content": "a calm voice"}, {"role": "user", "content": "hi."}]
    with pytest.raises(DatasetError, match="Dia takes no description"):
        modality_of(dia).prompt_ids(turns)
    with pytest.raises(DatasetError, match="'a calm voice' is not a speaker of CSM"):
        modality_of(csm).prompt_ids(turns)
    with pytest.raises(DatasetError, match="the name of a token"):
        modality_of(csm).prompt_ids([{"role": "user", "content": "say <|end_of_text|>"}])
    assert modality_of(csm).prompt_text(turns[1:]) == "<|begin_of_text|>[1]hi.<|end_of_text|>"
    assert modality_of(dia).prompt_text([{"role": "user", "content": "[S2] hi."}]) == "[S2] hi."
    model, codec = str(tmp_path / "a" / "dia"), tmp_path / "other"
    with pytest.raises(ModelError, match="is a dia, not CSM"):
        make_stream_voice("csm", model, str(tmp_path / "a" / "dac"), tmp_path / "out")
    with pytest.raises(ConfigError, match="--voice is not for Dia"):
        make_stream_voice("dia", model, str(tmp_path / "a" / "dac"), tmp_path / "out", voice="1")
    untrained_codec("neucodec").save_pretrained(codec)
    with pytest.raises(ModelError, match="2 codebooks of 16 codes, the codec 1"):
        make_stream_voice("dia", model, str(codec), tmp_path / "out")
    assert not (tmp_path / "out").exists()
