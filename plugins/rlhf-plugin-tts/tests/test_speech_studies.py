"""What the studies of speech training read from measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench import _speech_voices as speech_voices


def test_scores_of_other_sentences_are_not_taken_for_these(tmp_path: Path) -> None:
    asked = {"texts": ["Hi."], "names": ["duration"], "n": 1, "temperature": 1.0}
    (tmp_path / "kept.json").write_text(json.dumps({"asked": asked, "scores": {"duration": [0.5]}}))
    assert speech_voices.heard(tmp_path / "kept.json", "none", ["Hi."], ["duration"], 1) == {"duration": [0.5]}
    with pytest.raises(SystemExit, match="other sentences"):
        speech_voices.heard(tmp_path / "kept.json", "none", ["Ho."], ["duration"], 1)
