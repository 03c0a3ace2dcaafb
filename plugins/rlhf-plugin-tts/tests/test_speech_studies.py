"""What the studies of speech training read from measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_plugin_tts.acoustic import AcousticProxy
from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.config import AcousticProxyConfig
from rlhf_plugin_tts.features import measure
from rlhf_studies.common.speech import PROPOSED, Z_SCORES
from scripts.bench import _speech_voices as speech_voices


def test_scores_of_other_sentences_are_not_taken_for_these(tmp_path: Path) -> None:
    asked = {"texts": ["Hi."], "names": ["duration"], "n": 1, "temperature": 1.0}
    (tmp_path / "kept.json").write_text(json.dumps({"asked": asked, "scores": {"duration": [0.5]}}))
    assert speech_voices.scores_of(tmp_path / "kept.json", "none", ["Hi."], ["duration"], 1) == {"duration": [0.5]}
    with pytest.raises(SystemExit, match="other sentences"):
        speech_voices.scores_of(tmp_path / "kept.json", "none", ["Ho."], ["duration"], 1)


def test_the_proposed_proxy_is_the_weighted_sum_of_z_scores(test_data: Path) -> None:
    """Less 3: what the records of trained voices hold is this sum."""
    proxy = AcousticProxy(AcousticProxyConfig.model_validate(PROPOSED))
    for name in ("ref", "lyra_32", "audiodec_8"):
        clip = read_clip(test_data / "speech_mushra" / "stim_05" / f"{name}.flac")
        features = measure(clip)
        z = {n: max(-3.0, min(3.0, (features[n] - mean) / std)) for n, (_, mean, std) in Z_SCORES.items()}
        total = sum(weight * z[n] for n, (weight, _, _) in Z_SCORES.items())
        assert proxy.measure(clip, None)[0] == pytest.approx(total - 3)  # pyright: ignore[reportArgumentType]
