"""Samples survive the way to a verifier worker and back."""

from __future__ import annotations

import json

import pytest

from rlhf_core.types.rollouts import FinishReason, Media, Prompt, Sample
from rlhf_plugin_verifiers.workers import pack, sample_from_json, sample_to_json

QUESTION = ({"role": "user", "content": "What does the chart say?"},)
CHART, SPEECH = Media("image", path="charts/3.png", mime="image/png"), Media("audio", sha256="9f86d081")


@pytest.mark.parametrize(
    "sample",
    [
        Sample(Prompt("a", QUESTION), "4"),
        Sample(Prompt("a", QUESTION, "4", "gsm8k", {"level": 2}), "4", FinishReason.LENGTH),
        Sample(Prompt("a", QUESTION, media=(CHART, SPEECH)), "4", media=(SPEECH,)),
    ],
)
def test_samples_come_back_equal(sample: Sample) -> None:
    assert sample_from_json(json.loads(pack(sample_to_json(sample)))) == sample


def test_media_must_be_somewhere() -> None:
    with pytest.raises(ValueError, match="needs a path or a sha256"):
        Media("image")
