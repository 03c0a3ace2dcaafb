"""Language models that speak codec ids, with any codec of transformers: sampled, scored, trained from the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from untrained_voices import SIZE, untrained_codec, untrained_language_model

from rlhf_core.data import DatasetError
from rlhf_core.models import Formatter, ModelConfig, ModelError, load_policy
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.training import completion_logprobs
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.codec_voice.codec import FAMILIES, Codec
from rlhf_plugin_tts.codec_voice.make import make_voice

NAMED = {"token": "<|s_{}|>", "prompt": "voice:{voice}say:{text}<speak>", "voice": "any"}


@pytest.fixture(autouse=True)
def _sounds_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_AUDIO", str(tmp_path / "sounds"))


def make(tmp_path: Path, *, codebooks: int = 1, special: bool = False, family: str = "dac", **settings: Any) -> Path:
    """A voice of an untrained model and codec."""
    model = untrained_language_model(tmp_path / "lm", codebooks * SIZE, special)
    untrained_codec(family).save_pretrained(tmp_path / "the-codec")
    described = {**NAMED, "codebooks": codebooks, **settings}
    make_voice(str(model), str(tmp_path / "the-codec"), tmp_path / "voice", "<end>", described)
    return tmp_path / "voice"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_codec_decodes_what_its_own_decode_does(tmp_path: Path, family: str) -> None:
    made = untrained_codec(family).eval()
    made.save_pretrained(tmp_path)
    codec = Codec(tmp_path)
    books = min(2, codec.codebooks)
    frames = [[(3 * i + k) % SIZE for k in range(books)] for i in range(30)]
    codes = torch.tensor(frames).T[None]
    with torch.inference_mode():
        if family == "encodec":
            want = made.decode(codes[None], [None])[0]
        else:
            want = made.decode(audio_codes=codes).audio_values
    got = codec.decode(frames)
    assert codec.size == SIZE
    assert got.shape == (want.numel(),)
    assert abs(got - want.reshape(-1).clamp(-1, 1).numpy()).max() < 1e-5
    assert abs(len(got) / 30 - codec.rate / frame_rate(codec)) < 0.2 * codec.rate / frame_rate(codec)


def frame_rate(codec: Codec) -> float:
    """Frames a second, as the configuration says."""
    known = getattr(codec.config, "frame_rate", None)
    return float(known) if known else codec.rate / codec.config.hop_length


@pytest.mark.parametrize("special", [False, True])
def test_sampled_codes_have_exact_logprobs_a_sound_and_a_text(tmp_path: Path, special: bool) -> None:
    policy = load_policy(ModelConfig(path=str(make(tmp_path, special=special))))
    formatter = Formatter(policy.tokenizer, "auto")
    prompt = formatter.encode([{"role": "system", "content": "low"}, {"role": "user", "content": "hi."}])
    assert policy.tokenizer.decode(list(prompt)) == "voice: l o w say: h i . <speak>"
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    (rollout,) = engine.generate([RolloutRequest("a", prompt, 0, seed=1)], SamplingParams(max_tokens=80), 0)
    with torch.no_grad():
        again = completion_logprobs(policy.model, [prompt], [rollout.completion_ids]).logprobs_BT[0]
    assert abs(again.numpy() - rollout.logprobs_T).max() < 1e-4
    modality: Any = formatter.modality
    frames = modality.frames(rollout.completion_ids)
    assert frames
    assert rollout.media[0].seconds == pytest.approx(len(frames) * 64 / 4000, rel=0.1)
    assert read_clip(rollout.media[0].path).rate == 4000
    kept = [i for i in rollout.completion_ids if i != policy.tokenizer.eos_token_id]
    assert formatter.encode_completion(rollout.text) == (*kept, policy.tokenizer.eos_token_id)


def test_several_codebooks_lie_one_after_the_other(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig(path=str(make(tmp_path, codebooks=2))))
    modality: Any = Formatter(policy.tokenizer, "auto").modality
    ids = modality.completion_ids("<|s_3|> <|s_20|> a <|s_5|> <|s_7|> <|s_16|> <|s_18|> <|s_1|>")
    assert modality.frames(ids) == [[3, 4], [7, 0]]  # a first code without a second, and a second alone, are left out
    assert modality.media(ids)[0].seconds == pytest.approx(2 * 64 / 4000, rel=0.3)


def test_codes_by_offset_are_those_by_name(tmp_path: Path) -> None:
    named = load_policy(ModelConfig(path=str(make(tmp_path))))
    first = named.tokenizer.convert_tokens_to_ids("<|s_0|>")
    described = {**NAMED, "token": None, "first": first}
    make_voice(str(tmp_path / "lm"), str(tmp_path / "the-codec"), tmp_path / "by-offset", None, described)
    other = load_policy(ModelConfig(path=str(tmp_path / "by-offset")))
    ids = named.tokenizer.convert_tokens_to_ids(["<|s_1|>", "a", "<|s_15|>"])
    for policy in (named, other):
        modality: Any = Formatter(policy.tokenizer, "auto").modality
        assert modality.frames(ids) == [[1], [15]]


@pytest.mark.long
@pytest.mark.slow
def test_trains_from_the_command_and_saves_a_whole_voice(rlhf: Any, tmp_path: Path) -> None:
    model, codec, folder = untrained_language_model(tmp_path / "lm", SIZE), tmp_path / "dac", tmp_path / "voice"
    untrained_codec("dac").save_pretrained(codec)
    options = ["--token", "<|s_{}|>", "--prompt", "say:{text}<speak>", "--output", folder]
    done = rlhf("tts", "voice", "--model", model, "--codec", codec, *options)
    assert done.code == 0, done.err
    (tmp_path / "rows.jsonl").write_text('{"prompt": "open the door."}\n{"prompt": "close it."}\n')
    small = ["steps=1", "eval_samples=0", "rollout_batch_size=4", "group_size=2"]
    small += ["sampling.max_tokens=60", "sampling.min_tokens=60"]
    settings = [word for s in (*(f"trainer.{s}" for s in small), "model.lora.r=2") for word in ("--set", s)]
    run = rlhf(
        *("train", "--algo", "grpo", "--model", folder, "--dataset", tmp_path / "rows.jsonl", "--reward", "duration"),
        *(*settings, "--run-dir", tmp_path / "run"),
    )
    assert run.code == 0, run.err
    final = tmp_path / "run" / "final"
    said = rlhf("generate", "--prompt", "hi.", "--model", final, "--max-tokens", "40", "--out", tmp_path / "said.jsonl")
    assert said.code == 0, said.err
    row = json.loads((tmp_path / "said.jsonl").read_text())
    assert Path(row["audio"]).is_file()
    weights = (final / "codec" / "model.safetensors").read_bytes()
    assert weights == (codec / "model.safetensors").read_bytes()
    scored = rlhf("reward", "score", "--reward", "duration", "--input", tmp_path / "said.jsonl")
    assert scored.code == 0, scored.err


def test_a_codec_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = untrained_language_model(tmp_path / "lm", SIZE + 1)
    untrained_codec("dac").save_pretrained(tmp_path / "dac")
    with pytest.raises(ModelError, match="has 16 codes, the model 17 tokens named like") as error:
        make_voice(str(model), str(tmp_path / "dac"), tmp_path / "out", None, NAMED)
    assert "codec and model do not fit together" in str(error.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModelError, match="2 codebooks, the voice speaks 3"):
        make_voice(str(model), str(tmp_path / "dac"), tmp_path / "out", None, {**NAMED, "codebooks": 3})
    with pytest.raises(ModelError, match="holds a llama, which is not a codec"):
        make_voice(str(model), str(model), tmp_path / "out", None, NAMED)
    with pytest.raises(ModelError, match="has no token '<over>'"):
        make_voice(str(model), str(tmp_path / "dac"), tmp_path / "out", "<over>", NAMED)


def test_a_voice_without_its_codec_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "codec" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="is damaged"):
        load_policy(ModelConfig(path=str(folder)))
    (folder / "manifest.json").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        load_policy(ModelConfig(path=str(folder)))
    (folder / "codec" / "config.json").unlink()
    with pytest.raises(ModelError, match="there is no codec in"):
        load_policy(ModelConfig(path=str(folder)))
    (folder / "modality.json").write_text('{"modality": "codec-voice", "token": "<s>"}')
    with pytest.raises(ModelError, match="once, where the code"):
        load_policy(ModelConfig(path=str(folder)))


def test_prompts_that_cannot_be_spoken_are_refused(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig(path=str(make(tmp_path))))
    encode = Formatter(policy.tokenizer, "auto").encode
    for text, why in (("hi <|s_3|>", "name of a token"), (" ?", "nothing to say")):
        with pytest.raises(DatasetError, match=why):
            encode([{"role": "user", "content": text}])
    with pytest.raises(DatasetError, match="description of the voice is empty"):
        encode([{"role": "system", "content": " "}, {"role": "user", "content": "hi"}])
    with pytest.raises(DatasetError, match="is not a token of this voice"):
        Formatter(policy.tokenizer, "auto").encode_completion("<|s_3|> <|s_99|>")


@pytest.mark.parametrize(("kind", "said"), [("moshi", "is a Moshi, which cannot"), ("dia", "has a stream of its own")])
def test_speech_models_of_other_kinds_are_refused_by_name(tmp_path: Path, kind: str, said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ModelError, match=said):
        make_voice(str(tmp_path), str(tmp_path), tmp_path / "out", None, NAMED)


def test_voices_that_differ_in_codec_or_codes_do_not_share_sounds(tmp_path: Path) -> None:
    model = untrained_language_model(tmp_path / "lm", SIZE + 1)
    codecs = [tmp_path / f"codec{n}" for n in range(2)]
    for n, codec in enumerate(codecs):
        torch.manual_seed(n)
        untrained_codec("dac").apply(_redrawn).save_pretrained(codec)
    names = set()
    for n, (codec, first) in enumerate([(codecs[0], 4), (codecs[1], 4), (codecs[0], 5)]):
        make_voice(str(model), str(codec), tmp_path / f"voice{n}", "<end>", {"first": first})
        modality = Formatter(load_policy(ModelConfig(path=str(tmp_path / f"voice{n}"))).tokenizer, "auto").modality
        names.add(modality.media([6, 7, 8])[0].path)
    assert len(names) == 3


def _redrawn(part: Any) -> None:
    for weight in part.parameters(recurse=False):
        torch.nn.init.normal_(weight.data, std=0.1)
