"""Ladders of damage: the acoustic proxy falls along each; the README's table says where other rewards do not."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ladder
import numpy as np
import pytest
import soundfile
from damage import RATE, RUNGS, band_limit, mu_law, not_speech, telephone, tones

from rlhf_core.config import Registry
from rlhf_core.data import Prompt
from rlhf_plugin_tts.acoustic import AcousticProxy
from rlhf_plugin_tts.audio import clip_of, read_clip
from rlhf_plugin_tts.config import NATURAL, AcousticProxyConfig
from rlhf_plugin_tts.faults import is_speech
from rlhf_plugin_tts.features import Analysis
from rlhf_plugin_tts.speech_data.compare import speak

SAMPLE: Any = None
"""The proxy does not look at the text."""
TEXTS = ("The birch canoe slid on the smooth planks.", "Rice is often served in round bowls.")


def proxy(samples: Any, rate: int = RATE) -> float:
    return AcousticProxy(AcousticProxyConfig()).measure(clip_of(samples, rate), SAMPLE)[0]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads(ladder.RECORD.read_text())


@pytest.mark.long
@pytest.mark.slow
def test_the_proxy_falls_at_every_rung_on_all_recordings(test_data: Path, tmp_path: Path, record: Any) -> None:
    recordings = ladder.recorded_sentences()
    assert len(recordings) == 8
    found = ladder.measured(recordings, ["acoustic_proxy", "duration"], tmp_path)
    assert all(
        row["lower"] and not row["higher"] for rungs in found["ladders"]["acoustic_proxy"].values() for row in rungs
    )
    assert set(found["other"]["acoustic_proxy"].values()) == {0.0}
    blind = {name for name, rungs in found["ladders"]["duration"].items() if not any(row["lower"] for row in rungs)}
    assert blind == set(RUNGS) - {"faster", "slower", "silence, share"}
    few = ladder.measured(recordings[: record["sentences"]], ["acoustic_proxy", "duration"], tmp_path / "few")
    for name in ("acoustic_proxy", "duration"):
        verdicts = [
            [(row["lower"], row["higher"]) for rungs in r["ladders"][name].values() for row in rungs]
            for r in (few, record)
        ]
        assert verdicts[0] == verdicts[1]


def test_the_readme_has_the_table_of_the_record(record: Any) -> None:
    assert f"{ladder.MARK}\n\n{ladder.table(record)}\n\n{ladder.MARK}" in ladder.README.read_text()


def test_every_speech_reward_is_in_the_table_or_left_out_with_a_reason(record: Any) -> None:
    entries = Registry(disabled=()).entries("reward")
    ours = {entry.name for entry in entries if entry.distribution == "rlhf-plugin-tts"}
    shown = {name.split(",")[0] for name in record["ladders"]}
    assert shown | set(ladder.NOT_MEASURED) == ours
    assert not shown & set(ladder.NOT_MEASURED)


def test_natural_ranges_hold_recorded_speech(test_data: Path, record: Any) -> None:
    """Half of the recordings lie in each range, or within one scale of it."""
    found = ladder.natural(ladder.recorded_sentences())
    for name, (low, high, scale) in NATURAL.items():
        assert found[name] == pytest.approx(record["natural"][name], rel=1e-3, abs=1e-3)
        assert low - scale <= found[name][1] <= high + scale, name


@pytest.mark.slow
@pytest.mark.parametrize("voice", ["pocket-voice", "slt", "rms", "awb", "kal16"])
def test_damage_lowers_the_score_of_voices_that_are_made_here(
    voice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_AUDIO", str(tmp_path))
    files = list(map(tmp_path.joinpath, ("0.wav", "1.wav")))
    if voice == "pocket-voice":
        prompts = [Prompt(text, ({"role": "user", "content": text},)) for text in TEXTS]
        files = [Path(sample.media[0].path) for sample in speak(voice, prompts, 1, seed=0, temperature=0.5)]
    elif shutil.which("flite") is None:
        pytest.skip("flite is not installed")
    else:
        for file, text in zip(files, TEXTS):
            subprocess.run(["flite", "-voice", voice, "-t", text, "-o", str(file)], check=True)
    clips = [read_clip(file).at(RATE).samples for file in files]
    clean = np.array([proxy(x) for x in clips])
    # pocket-voice can be slower than natural speech, so that a faster clip is nearer to it.
    for name, (damage, values) in ((n, r) for n, r in RUNGS.items() if (voice, n) != ("pocket-voice", "faster")):
        worst = np.array([proxy(damage(x, values[-1])) for x in clips])
        assert (worst < clean - 0.04).all(), name
    for change in (lambda x: band_limit(x, 4000), lambda x: mu_law(x, 8), lambda x: telephone(x, 8)):
        assert (np.array([proxy(change(x)) for x in clips]) < clean).all()
    assert clean.min() > -0.5
    assert max(map(proxy, not_speech(RATE).values())) == -4.0


@pytest.mark.parametrize("hz", [60.0, 110.0, 220.0, 437.0, 1000.0, 3100.0, 7000.0])
@pytest.mark.parametrize(
    "more", [lambda x: x, lambda x: np.clip(3 * x, -0.2, 0.2), lambda x: x * np.linspace(0, 1, len(x))]
)
def test_a_tone_is_worth_the_least_there_is(hz: float, more: Callable[[Any], Any]) -> None:
    for rate in (8000, RATE, 48000):
        sound = more(tones(2 * rate, hz * RATE / rate))
        assert proxy(sound, rate) == -4.0


def test_level_and_sample_rate_do_not_matter(test_data: Path) -> None:
    import soxr

    clip = read_clip(ladder.recorded_sentences()[1])
    usual = proxy(clip.samples, clip.rate)
    for level in (0.05, 0.3, 2.5):
        assert proxy(level * clip.samples, clip.rate) == pytest.approx(usual, abs=0.02)
    at_48 = soxr.resample(clip.samples, clip.rate, 48000)
    assert proxy(at_48, 48000) == pytest.approx(usual, abs=0.02)


def test_speech_is_told_from_other_sounds(test_data: Path, tmp_path: Path) -> None:
    for file in ladder.recorded_sentences():
        clip = read_clip(file)
        assert is_speech(Analysis(clip)), file
        second = clip_of(clip.samples[clip.rate // 2 : clip.rate], clip.rate)
        assert is_speech(Analysis(second)), file
    for name, sound in not_speech(2 * RATE).items():
        soundfile.write(tmp_path / "a.wav", sound, RATE)
        assert not is_speech(Analysis(read_clip(tmp_path / "a.wav"))), name
