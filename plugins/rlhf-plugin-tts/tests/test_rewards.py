"""Rewards of clips: their values on sounds that are known, what bad clips cost, and what is said of a missing extra."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from rlhf_core.config import ConfigError, Registry
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_tts import config as configs
from rlhf_plugin_tts.audio import clip_of, read_clip
from rlhf_plugin_tts.config import NATURAL
from rlhf_plugin_tts.duration import Duration
from rlhf_plugin_tts.guard_config import GuardSettings
from rlhf_plugin_tts.guards import guard
from rlhf_plugin_tts.wer import PocketSphinx, error_rates, in_latin_letters, normalised
from rlhf_testing import make_context

RATE = 16000
Voice = Callable[..., Path]
Speak = Callable[..., Sample]


def build(name: str, **settings: Any) -> Any:
    registry = Registry(disabled=())
    cls = registry.load("reward", name)
    ctx = make_context(registry=registry)
    config = cls.model_validate({"name": name, **settings}, context={"registry": registry})
    config.preflight(ctx)
    return config.build(ctx)


def test_the_proxy_is_the_mean_distance_from_natural_speech(voice: Voice, spoken: Speak) -> None:
    sample = spoken(voice("a.wav", noise=0.3))
    weights = {"bandwidth": 3.0, "noise_floor": 1.0, "hnr": 0.0}
    (score,) = build("acoustic_proxy", weights=weights, limit=100.0).score([sample])
    outside = {
        n: max(0.0, low - score.parts[n], score.parts[n] - high) / s
        for n, (low, high, s) in NATURAL.items()
        if n in weights
    }
    assert score.value == pytest.approx(-(3 * outside["bandwidth"] + outside["noise_floor"]) / 4)
    assert min(outside["bandwidth"], outside["noise_floor"]) > 1.0
    assert set(score.parts) == {*weights, "speech"}
    (bounded,) = build("acoustic_proxy", weights=weights, limit=0.5).score([sample])
    assert bounded.value == pytest.approx(-0.5)
    own = {"spectral_centroid": (9000.0, 1e9, 1000.0)}
    (other,) = build("acoustic_proxy", weights={"spectral_centroid": 1}, natural=own, limit=9).score([sample])
    assert other.value == pytest.approx((other.parts["spectral_centroid"] - 9000) / 1000)


def test_nothing_is_paid_for_more_than_natural_speech_has(voice: Voice, spoken: Speak) -> None:
    """A hinge: voicing, harmonicity and the others are worth the same everywhere in their range."""
    proxy = build("acoustic_proxy")
    for name, (low, high, scale) in NATURAL.items():
        inside = {proxy._fault(name, low + share * (high - low)) for share in (0.0, 0.3, 1.0)}
        assert inside == {0.0}, name
        assert proxy._fault(name, high + scale) == pytest.approx(1.0), name
        assert proxy._fault(name, math.nan) == proxy.config.limit, name


def test_a_feature_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Exception, match="no acoustic measure 'jitter'"):
        build("acoustic_proxy", weights={"jitter": 1.0})
    with pytest.raises(Exception, match=r"natural\.pitch_variance="):
        build("acoustic_proxy", weights={"pitch_variance": 1.0})


@pytest.mark.slow
def test_noise_lowers_every_model_of_quality(voice: Voice, spoken: Speak, test_data: Path) -> None:
    """Real speech, and the same with noise; a short clip fills one window of DNSMOS, which starts nine times faster."""
    clean = test_data / "speech_mushra" / "stim_02" / "ref.flac"
    clip = read_clip(clean).at(RATE)
    noise = 0.1 * np.abs(clip.samples).max() * np.random.default_rng(0).standard_normal(len(clip.samples))
    noisy = voice("noisy.wav")
    soundfile.write(noisy, clip.samples + noise, RATE)
    names = ["dnsmos"] + (["distillmos"] if importlib.util.find_spec("distillmos") else [])
    for name in names:
        good, bad = build(name).score([spoken(clean), spoken(noisy)])
        assert 1 < bad.value < good.value - 0.5 < 5, name


@pytest.mark.slow
def test_dnsmos_equals_the_reference_on_the_windows_that_it_scores(test_data: Path, spoken: Speak) -> None:
    pytest.importorskip("requests")
    from speechmos import dnsmos  # pyright: ignore[reportMissingImports]

    samples = read_clip(test_data / "speech_mushra" / "stim_01" / "lyra_6.flac").at(RATE).samples
    long = np.clip(np.resize(samples, round(10.7 * RATE)), -1, 1)
    theirs = dnsmos.run(long, RATE)
    _, ours = build("dnsmos").measure(clip_of(long, RATE), spoken("x"))
    for name in ("p808", "ovrl", "sig", "bak"):
        assert ours[name] == pytest.approx(float(theirs[f"{name}_mos"]), abs=1e-4)


@pytest.mark.slow
def test_distillmos_equals_the_package(monkeypatch: pytest.MonkeyPatch, test_data: Path, spoken: Speak) -> None:
    pytest.importorskip("xls_r_sqa")
    import torch

    if importlib.util.find_spec("torchaudio") is None:
        monkeypatch.setitem(sys.modules, "torchaudio", types.ModuleType("torchaudio"))  # used for files only
    theirs = pytest.importorskip("distillmos").ConvTransformerSQAModel().eval()
    samples = read_clip(test_data / "speech_mushra" / "stim_01" / "lyra_32.flac").at(RATE).samples
    reward = build("distillmos")
    for seconds in (3.0, 9.5):
        clip = clip_of(np.resize(samples, round(seconds * RATE)), RATE)
        with torch.inference_mode():
            expected = float(theirs(torch.from_numpy(clip.samples)[None]))
        assert reward.measure(clip, spoken("x"))[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_word_errors_of_real_speech(test_data: Path, spoken: Speak) -> None:
    clean = test_data / "speech_mushra" / "stim_02" / "ref.flac"
    text = "Waiting, K! The Black Watch (the Royal Highland Regiments)"
    right, wrong = build("wer").score([spoken(clean, text), spoken(clean, "x", answer="Nothing of this was said.")])
    assert right.parts["words"] == 9
    assert right.parts["wer"] < 0.5
    assert wrong.value == -1.0
    assert wrong.parts["wer"] >= 1.0


@pytest.mark.slow
def test_a_transcript_does_not_depend_on_the_clips_before(test_data: Path) -> None:
    files = sorted((test_data / "speech_mushra").glob("stim_0[12]/*.flac"))[:8:4]
    clips, recogniser = [read_clip(file) for file in files], PocketSphinx()
    forward = [recogniser.transcribe(clip) for clip in clips]
    backward = [recogniser.transcribe(clip) for clip in clips[::-1]]
    assert forward == backward[::-1]
    assert all(forward)


def test_words_are_compared_without_case_and_punctuation() -> None:
    assert normalised("Don't PANIC -- it’s 5 o’clock!") == "don't panic it's five o'clock"
    assert error_rates(normalised("Room 404"), normalised("room four hundred four"))[0] == 0.0
    assert error_rates(normalised("今天天气很好。"), normalised("今天天氣很好")) == pytest.approx((1 / 6, 1 / 6))
    assert error_rates(normalised("今天 ok"), normalised("昨日")) == pytest.approx((1.0, 1.0))
    assert error_rates("one two three four", "one too three") == (0.5, pytest.approx(6 / 18, abs=0.2))
    assert error_rates("one two", "") == (1.0, 1.0)


def test_pocketsphinx_is_not_asked_for_letters_that_it_cannot_write(voice: Voice, spoken: Speak) -> None:
    reward = build("wer")
    another = SimpleNamespace(transcribe=lambda clip: "a cafe")
    cyrillic, mixed = reward.score([spoken(voice("a.wav"), text) for text in ("Привет, мир", "hello 世界")])
    assert (cyrillic.status, mixed.status) == (ScoreStatus.MISSING, ScoreStatus.MISSING)
    assert "recogniser=whisper" in cyrillic.detail
    assert in_latin_letters(normalised("Café, naïve!")) == "cafe naive"
    reward.recogniser = another  # not PocketSphinx: it may know them
    assert reward.score([spoken(voice("a.wav"), "Привет")])[0].value == -1.0


def test_duration_is_relative_to_the_text(voice: Voice, spoken: Speak) -> None:
    reward = Duration(configs.DurationConfig(characters_per_second=10, pause_seconds=0))
    read, said = reward.score([spoken(voice("b.wav", seconds=2), text) for text in ("40", "forty")])
    assert read.value == said.value
    fitting, doubled = reward.score([spoken(voice("a.wav", seconds=2), "x" * n) for n in (20, 10)])
    assert fitting.value == pytest.approx(0.0, abs=1e-6)
    assert doubled.value == pytest.approx(-math.log(2), abs=1e-6)
    assert reward.score([spoken(voice("a.wav"), "?!")])[0].status is ScoreStatus.MISSING


BAD = {
    "missing.wav": "no such file",
    "empty.wav": "cannot be read",
    "text.wav": "cannot be read",
    "cut.flac": "",
    "half.wav": "is cut off: 30000 of 64000 bytes",
    "header.wav": "no samples",
    "nan.wav": "not finite",
    "silent.wav": "silent",
    "short.wav": "less than 0.1",
    "opposite.wav": "cancel each other",
    "constant.wav": "silent",
    "long.wav": "more than 60",
    "slow.wav": "has 800 samples a second",
    "folder.wav": "no such file",
    "x" * 300 + ".wav": "no such file",
}


@pytest.fixture
def bad_clips(tmp_path: Path, voice: Voice) -> Path:
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("not audio at all " * 50)
    (tmp_path / "cut.flac").write_bytes(voice("whole.flac").read_bytes()[:9000])
    (tmp_path / "half.wav").write_bytes(voice("whole.wav").read_bytes()[: 30_000 + 44])
    soundfile.write(tmp_path / "header.wav", np.zeros(0), RATE)
    soundfile.write(tmp_path / "nan.wav", np.full(RATE, np.nan), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    one, _ = soundfile.read(voice("one.wav"))
    soundfile.write(tmp_path / "opposite.wav", np.stack([one, -one], axis=1), RATE)
    soundfile.write(tmp_path / "constant.wav", np.full(RATE, 0.5), RATE)
    soundfile.write(tmp_path / "short.wav", np.ones(100) / 2, RATE)
    soundfile.write(tmp_path / "long.wav", np.zeros(600 * 8000), 8000)
    soundfile.write(tmp_path / "slow.wav", np.ones(1000) / 2, 800)
    (tmp_path / "folder.wav").mkdir()
    return tmp_path


def test_bad_clips_have_no_score_and_a_reason(bad_clips: Path, spoken: Speak) -> None:
    reward = build("acoustic_proxy")
    scores = dict(zip(BAD, reward.score([spoken(bad_clips / name) for name in BAD])))
    for name, reason in BAD.items():
        assert scores[name].value is None or name == "cut.flac", name
        assert reason in scores[name].detail, name
    without_sound = Sample(Prompt("text/0", ({"role": "user", "content": "Hi"},)), "Hello")
    assert "has no sounds" in reward.score([without_sound])[0].detail


def test_a_wav_of_unknown_length_is_whole(voice: Voice, spoken: Speak) -> None:
    file = voice("piped.wav")
    content = bytearray(file.read_bytes())
    content[4:8] = content[40:44] = b"\xff" * 4  # as a program writes it to a pipe
    file.write_bytes(content)
    (score,) = build("duration").score([spoken(file)])
    assert score.parts["seconds"] == pytest.approx(2.0)


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (22050, 2), (48000, 2)])
def test_every_rate_and_number_of_channels_is_scored(
    rate: int, channels: int, tmp_path: Path, voice: Voice, spoken: Speak
) -> None:
    mono, _ = soundfile.read(voice("a.wav", rate=rate))
    soundfile.write(tmp_path / "b.wav", np.stack([mono] * channels, axis=1), rate)
    (score,) = build("acoustic_proxy").score([spoken(tmp_path / "b.wav")])
    (usual,) = build("acoustic_proxy").score([spoken(voice("a.wav"))])
    assert score.parts["speech"] == usual.parts["speech"] == 1.0
    assert score.parts["movement"] == pytest.approx(usual.parts["movement"], rel=0.1)
    assert score.parts["energy_dynamics"] == pytest.approx(usual.parts["energy_dynamics"], rel=0.1)


def test_a_scorer_without_its_package_names_it_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    gone = {"distillmos", "pocketsphinx", "speechmos"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n in gone else find(n, *a))
    for name in ("distillmos", "dnsmos", "wer", "speech"):
        with pytest.raises(ConfigError, match="pip install"):
            build(name)


def test_rewards_that_need_no_trained_folder_can_be_named_alone() -> None:
    from rlhf_core.cli import chosen_reward

    registry = Registry(disabled=())
    for name in ("wer", "utmos22", "speaker_similarity", "speech", "dnsmos"):
        assert chosen_reward(registry, None, name, ()).name == name
    for name in ("audio_feature_model", "audio_encoder_model"):
        with pytest.raises(ConfigError, match="trained model"):
            chosen_reward(registry, None, name, ())


@pytest.mark.slow
def test_a_guard_penalises_or_gates_what_breaks_it(tmp_path: Path, voice: Voice, spoken: Speak) -> None:
    loud, _ = soundfile.read(voice("a.wav"))
    soundfile.write(tmp_path / "loud.wav", np.clip(20 * loud, -1, 1), RATE)
    good, bad = spoken(voice("a.wav"), "x" * 24), spoken(tmp_path / "loud.wav", "x" * 24)
    inner = {"name": "duration"}
    plain = build("duration").score([good, bad])
    penalised = build("guarded", of=inner, guards={"penalty": 2.0}).score([good, bad])
    assert [p.value - s.value for p, s in zip(penalised, plain)] == pytest.approx([0.0, -2.0])
    assert penalised[1].parts["guard/clipping"] > 0.1
    gated = build("guarded", of=inner, guards={"action": "status"}).score([good, bad])
    assert [g.status for g in gated] == [ScoreStatus.OK, ScoreStatus.GATED]
    assert "clipping" in gated[1].detail
    (slow,) = build("guarded", of=inner).score([spoken(voice("b.wav", seconds=9), "x" * 14)])
    assert slow.parts["guard/broken"] == 1
    (score,) = build("guarded", of=inner, guards={"most_wer": 0.5}).score([spoken(voice("a.wav"), "eleven words")])
    assert score.parts["guard/wer"] > 0.5


def test_a_limit_that_cannot_be_looked_at_does_not_hold(tmp_path: Path, spoken: Speak) -> None:
    """A clip longer than what the recogniser and the duration take by default, and a text of no letters."""
    soundfile.write(tmp_path / "long.wav", 0.1 * np.sin(np.arange(100 * 8000) / 10), 8000)
    inner, limits = {"name": "duration", "max_seconds": 600}, {"most_silence": None, "most_duration_error": 0.5}
    (score,) = build("guarded", of=inner, guards=limits).score([spoken(tmp_path / "long.wav", "x" * 14)])
    assert (score.parts["guard/broken"], score.parts["guard/not_speech"]) == (2, 1)  # too long, and a tone
    whatever = guard(SimpleNamespace(score=lambda samples: [Score(1.0) for _ in samples]), GuardSettings())
    (unread,) = whatever.score([spoken(tmp_path / "none.wav")])
    (unsaid,) = whatever.score([spoken(tmp_path / "long.wav", "...")])
    assert [unread.status, unsaid.status] == [ScoreStatus.MISSING] * 2
    assert "the limit on 'duration' cannot be looked at" in unsaid.detail


def test_weights_that_say_nothing_are_refused() -> None:
    for weight, words in ((0.0, "all weights are 0"), (math.nan, "not a finite number"), (-1.0, "not a finite number")):
        with pytest.raises(Exception, match=words):
            build("acoustic_proxy", weights={"hnr": weight})
    for natural in ((0.0, math.inf, 1.0), (math.nan, 1.0, 1.0), (0.0, 0.0, 0.0), (2.0, 1.0, 1.0)):
        with pytest.raises(Exception, match="natural range of 'hnr'"):
            build("acoustic_proxy", natural={"hnr": natural})


def test_a_low_sample_rate_is_told_once(voice: Voice, spoken: Speak, caplog: pytest.LogCaptureFixture) -> None:
    samples = [spoken(voice(f"{n}.wav", rate=8000, seconds=0.3)) for n in range(2)]
    for name in ("duration", "acoustic_proxy"):
        build(name).score([*samples, spoken(voice("usual.wav", seconds=0.3))])
    assert [record.getMessage().split(";")[0] for record in caplog.records if "resampled" in record.message] == [
        "AcousticProxy: clips of 8000 Hz are resampled to 16000 Hz"
    ]


def test_the_default_composite_sums_z_scores(test_data: Path, spoken: Speak) -> None:
    files = [test_data / "speech_mushra" / "stim_02" / f"{n}.flac" for n in ("ref", "prop_13_16k")]
    reward = build("speech", parts={"quality": {"reward": "acoustic_proxy", "normalise": "zscore"}})
    scores = reward.score([spoken(f, "waiting k the black watch the royal highland regiments") for f in files])
    assert sum(s.value for s in scores) == pytest.approx(0.0, abs=1e-6)
    assert reward.state_dict()["statistics"]["quality"]["count"] == 2
    default = Registry(disabled=()).load("reward", "speech")
    parts = default.model_validate({"name": "speech"}, context={"registry": Registry(disabled=())}).parts
    assert {n: (p.reward.name, p.weight, p.normalise) for n, p in parts.items()} == {
        "quality": ("dnsmos", 0.5, "zscore"),
        "words": ("wer", 0.5, "zscore"),
        "acoustics": ("acoustic_proxy", 1.0, "none"),
    }
    assert parts["quality"].reward.value == "ovrl"


def test_rows_that_name_audio_files_are_scored_by_the_command(rlhf: Any, tmp_path: Path, voice: Voice) -> None:
    voice("clips/a.wav")
    rows = [
        {"prompt": "One.", "audio": "clips/a.wav"},
        {"prompt": "Two.", "completion": "Two.", "audio": "clips/a.wav"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = rlhf("reward", "score", "--reward", "acoustic_proxy", "--input", str(tmp_path / "rows.jsonl"), "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["scored"] == 2
    assert answer["rows"][0]["parts"]["voiced_fraction"] > 0.5
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "One.", "audio": 3}) + "\n")
    refused = rlhf("reward", "score", "--reward", "acoustic_proxy", "--input", str(tmp_path / "rows.jsonl"))
    assert refused.code == 2
    assert "line 1" in refused.err


LISTENS: dict[str, dict[str, Any]] = {
    "acoustic_proxy": {},
    "dnsmos": {},
    "distillmos": {},
    "duration": {},
    "wer": {},
    "speech": {},
    "guarded": {"of": {"name": "acoustic_proxy"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LISTENS))
def test_a_bad_file_costs_its_row_alone(name: str, rlhf: Any, bad_clips: Path, voice: Voice) -> None:
    """Whatever is wrong with a file, the command goes on; where no row has a score it says so and fails."""
    if name == "distillmos" and importlib.util.find_spec("distillmos") is None:
        pytest.skip("the package distillmos is not installed")
    for hz in (120, 180):
        voice(f"good{hz}.wav", hz=hz)
    unreadable = [b for b in BAD if b != "cut.flac" and not (name in ("duration", "wer") and BAD[b] == "silent")]
    rows: list[dict[str, Any]] = [{"prompt": "a nice day", "audio": b} for b in unreadable]
    rows += [{"prompt": "a nice day", "audio": empty} for empty in (None, "")]
    good = [{"prompt": "a nice day", "audio": f"good{hz}.wav"} for hz in (120, 180)]
    file = bad_clips / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (good[0], *rows, good[1])))
    settings = [f"--set={key}={json.dumps(value)}" for key, value in LISTENS[name].items()]
    done = rlhf("reward", "score", "--reward", name, *settings, "--input", str(file), "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)["rows"]
    assert [row["status"] for row in answer] == ["ok", *["missing"] * len(rows), "ok"]
    assert all(row["score"] is None and row["detail"] for row in answer[1:-1])
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    failed = rlhf("reward", "score", "--reward", name, *settings, "--input", str(file), "--json")
    assert failed.code == 1
    assert "no row of" in failed.err
    assert "no such file" in failed.err


@pytest.mark.slow
def test_clips_are_scored_in_killable_workers(bad_clips: Path, voice: Voice, spoken: Speak) -> None:
    registry = Registry(disabled=())
    settings = {"of": "acoustic_proxy", "workers": 1, "timeout_s": 30}
    workers = registry.config("reward", "workers", settings).build(make_context(registry=registry))
    try:
        scores = workers.score([spoken(voice("a.wav")), spoken(bad_clips / "text.wav")])
    finally:
        workers.close()
    assert scores[0].value == build("acoustic_proxy").score([spoken(voice("a.wav"))])[0].value
    assert scores[1].status is ScoreStatus.MISSING
