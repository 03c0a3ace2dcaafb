"""Codec and front end of pocket-voice."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_core.data import DatasetError
from rlhf_plugin_tts.pocket_voice.analysis import HOP, RATE, analyse
from rlhf_plugin_tts.pocket_voice.codec import (
    EXCITATIONS,
    Frames,
    PocketCodec,
    excitation_codes,
    excitation_of,
    frames_of,
    tokens_of,
)
from rlhf_plugin_tts.pocket_voice.frontend import phones_of, prompt_text, words_of
from rlhf_plugin_tts.pocket_voice.numbers import spell_numbers
from rlhf_plugin_tts.pocket_voice.vocoder import synthesise


def vowel(f0: float, seconds: float = 0.6) -> np.ndarray:
    """Pulses through two resonances."""
    pulses = np.zeros(int(seconds * RATE))
    pulses[np.arange(0, len(pulses), RATE / f0).astype(int)] = 1.0
    out = pulses
    for hz, width in ((700.0, 90.0), (1200.0, 110.0), (2600.0, 160.0)):
        radius = np.exp(-np.pi * width / RATE)
        a1, a2 = -2 * radius * np.cos(2 * np.pi * hz / RATE), radius**2
        now = np.zeros_like(out)
        for i in range(len(out)):
            now[i] = out[i] - a1 * now[i - 1] - a2 * now[i - 2]
        out = now
    return 0.3 * out / np.abs(out).max()


@pytest.mark.parametrize("f0", [90.0, 140.0, 220.0])
def test_pitch_and_voicing_of_a_vowel(f0: float) -> None:
    hz, voiced, _ = analyse(vowel(f0))
    assert voiced[5:-5].all()
    assert np.median(hz[voiced]) == pytest.approx(f0, rel=0.03)


def test_noise_has_no_voice() -> None:
    assert analyse(np.random.default_rng(0).normal(0, 0.1, RATE // 2))[1].mean() < 0.1


def test_analysis_of_a_synthesis_gives_the_parameters_back() -> None:
    f0, voiced, cepstra = analyse(vowel(120.0))
    again_f0, again_voiced, again = analyse(synthesise(f0, voiced, cepstra).astype(float))
    inside = slice(6, -6)
    assert again_voiced[inside].all()
    assert np.median(again_f0[inside]) == pytest.approx(120.0, rel=0.03)
    distance = 10 / np.log(10) * np.sqrt(((again - cepstra)[inside, 1:] ** 2).sum(1) / 2).mean()
    assert distance < 4.0, "decibels"


def test_the_level_of_speech_is_kept() -> None:
    wave = vowel(120.0)
    level = np.sqrt((synthesise(*analyse(wave)) ** 2).mean())
    assert level == pytest.approx(np.sqrt((wave**2).mean()), rel=0.25)


def test_pitch_codes_are_less_than_a_semitone_off() -> None:
    f0 = np.repeat([80.0, 110.0, 200.0], 40)
    hz, voiced = excitation_of(excitation_codes(f0, np.ones(120, bool)))
    assert voiced.all()
    assert np.abs(12 * np.log2(hz / f0))[[20, 60, 100]].max() < 0.5


def test_voicing_codes_know_each_half() -> None:
    voiced = np.array([1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0], bool)
    codes = excitation_codes(np.full(12, 100.0), voiced)
    assert codes[2] == EXCITATIONS - 1
    assert excitation_of(codes)[1].tolist() == voiced.tolist()


def test_tokens_give_the_frames_back_and_any_sequence_is_sound() -> None:
    codec = PocketCodec(np.random.default_rng(0).normal(0, 0.1, (8, 24)))
    frames = Frames(np.array([3, 96]), np.array([1, 2, 7, 0]))
    tokens = tokens_of(frames, [("hh", 0), ("ay", 1)])
    assert tokens == ["hh", "e3", "c1", "c2", "ay", "e96", "c7", "c0"]
    back = frames_of(tokens)
    assert back.excitation_T.tolist() == [3, 96]
    assert back.spectrum_T2.tolist() == [1, 2, 7, 0]
    odd = frames_of(["c1", "e3", "hh", "c2", "c3", "c4", "e5", "e6", "c1", "|"])
    assert len(codec.decode(odd)) == len(odd.spectrum_T2) * 2 * HOP
    assert len(codec.decode(frames_of(["hh"]))) == 0


def test_numbers_are_read() -> None:
    assert " ".join(spell_numbers("$3.50 at 7%").split()) == "three point five zero dollars at seven percent"
    assert " ".join(spell_numbers("1,042 and 007").split()) == "one thousand forty two and zero zero seven"
    read = " ".join(spell_numbers("-5 on the 42nd, 12th, 3-4").split())
    assert read == "minus five on the forty second , twelfth , three - four"


def test_no_sign_is_left_out_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert words_of("½ cup, x²") == ["one", "two", "cup", ",", "x", "two"]
    assert len(caplog.records) == 1
    assert words_of("Fine (really) - it's 'so'.") == ["fine", "really", "it's", "so", "."]
    assert len(caplog.records) == 1
    words_of("1 + 1 = 2 #sums 🙂")
    assert caplog.messages[-1] == "text: '#+=🙂' is not spoken"


def test_a_prompt_is_styles_and_phones() -> None:
    assert prompt_text("Hi!", "A slow, deep voice") == "slow low | hh ay . >"
    assert phones_of("Zorgflibbet's") != []
    assert phones_of("Café 🙂") == phones_of("Cafe")


@pytest.mark.parametrize(
    ("text", "description", "say"),
    [
        ("🙂 ...", "plain", "nothing to say"),
        ("", "plain", "nothing to say"),
        ("Привет", "plain", "cannot read"),
        ("word " * 400, "plain", "too many"),
        ("Hi", "", "is empty"),
        ("Hi", "purple", "no word that the voice knows"),
        ("Hi", "slow and fast", "at once"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(text: str, description: str, say: str) -> None:
    with pytest.raises(DatasetError, match=say):
        prompt_text(text, description)
