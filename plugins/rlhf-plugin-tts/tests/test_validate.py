"""`rlhf tts validate`: correlations, what is kept, ablation, and weights tested on clips they were not fitted to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_plugin_tts.validation import correlations, spearman
from rlhf_plugin_tts.weighting import folds, pairs_within, rows_by_group, study

Voice = Callable[..., Path]
RNG = np.random.default_rng(0)
GROUPS = [f"engine {i // 10}" for i in range(60)]
ENGINE = np.repeat(RNG.standard_normal(6) * 5, 10)
QUALITY = RNG.standard_normal(60)
RATING = ENGINE + QUALITY
COLUMNS = {
    "of_engine": ENGINE + 0.1 * RNG.standard_normal(60),
    "of_clip": QUALITY + 0.5 * RNG.standard_normal(60),
    "turned": -QUALITY + 0.5 * RNG.standard_normal(60),
    "noise": RNG.permutation(60).astype(float),
}


def test_spearman_is_scipys_and_leaves_missing_values_out() -> None:
    from scipy.stats import spearmanr

    x = COLUMNS["of_clip"]
    assert spearman(x, RATING) == pytest.approx(spearmanr(x, RATING)[0])
    holes = np.where(np.arange(60) % 4 == 0, np.nan, x)
    assert spearman(holes, RATING) == pytest.approx(spearmanr(holes, RATING, nan_policy="omit")[0])
    assert np.isnan(spearman(np.ones(60), RATING))


def test_a_feature_that_only_tells_engines_apart_is_confounded() -> None:
    table = correlations(COLUMNS, RATING, GROUPS, 0.3, seed=0)
    assert table["of_engine"]["pooled"] > 0.8
    assert table["of_engine"]["confounded"]
    assert not table["of_engine"]["kept"]
    assert table["of_clip"]["kept"]
    assert table["of_clip"]["within"] > 0.7 > table["of_clip"]["pooled"]
    low, high = table["of_clip"]["within_interval"]
    assert 0.5 < low < table["of_clip"]["within"] < high < 1
    assert table["turned"]["kept"]
    assert table["turned"]["within"] < -0.7
    assert not table["noise"]["kept"]


def test_ablation_and_weights_on_held_out_groups() -> None:
    kept = {name: COLUMNS[name] for name in ("of_clip", "noise", "turned")}
    result = study(kept, {"of_clip": 0.2, "noise": 0.9, "turned": 0.1}, RATING, GROUPS, seed=0)
    assert result["pairs"] == 6 * 45
    assert result["ablation"]["noise"]["change"] > 0.1
    assert result["ablation"]["of_clip"]["change"] < -0.02
    assert result["heldout"]["reweighted_accuracy"] > result["heldout"]["accuracy"] + 0.2
    assert result["recommended"] == "fitted_weights"
    assert result["fitted_weights"]["turned"] < 0 < result["fitted_weights"]["of_clip"]
    assert abs(result["fitted_weights"]["noise"]) < 0.1


@pytest.mark.parametrize("groups", [GROUPS, [""] * 60])
def test_no_clip_is_in_the_fit_and_in_the_test(groups: list[str]) -> None:
    by_group = rows_by_group(groups)
    made = folds(pairs_within(RATING, by_group), by_group, 60, seed=0)
    assert len(made) == len(set(groups)) or len(made) == 5
    for train, test in made:
        assert not set(train.ravel()) & set(test.ravel())


@pytest.mark.long
@pytest.mark.slow
def test_the_command_validates_features_and_parts_of_rewards(rlhf: Any, tmp_path: Path, voice: Voice) -> None:
    rows = []
    for i in range(12):
        noise = 0.02 * 1.5**i
        voice(f"clips/{i}.wav", hz=120 + 10 * (i % 3), noise=noise, seconds=0.5)
        rows.append({"audio": f"clips/{i}.wav", "text": "x" * (i + 1), "mos": 5 - noise, "speaker": f"s{i % 2}"})
    file = tmp_path / "rated.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = rlhf("tts", "validate", "--clips", file, "--reward", "duration", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["columns"]["hnr"]["within"] == pytest.approx(1.0)
    assert report["columns"]["spectral_flatness"]["within"] < -0.9
    assert "duration" in report["columns"]
    assert report["columns"]["duration/expected_seconds"]["pooled"] == pytest.approx(-1.0)
    assert report["columns"]["duration/seconds"]["pooled"] is None
    (tmp_path / "clips" / "3.wav").unlink()
    done = rlhf("tts", "validate", "--clips", file, "--reward", "duration", "--json")
    assert done.code == 0, done.err
    without = json.loads(done.out)["columns"]
    assert [without[n]["missing"] - report["columns"][n]["missing"] for n in ("hnr", "duration")] == [1, 1]
    file.write_text(file.read_text().replace("clips/", "gone/"))
    refused = rlhf("tts", "validate", "--clips", file)
    assert refused.code == 2
    assert "nothing could be measured" in refused.err
    assert report["weighting"]["ablation"].keys() == {n for n, c in report["columns"].items() if c["kept"]}


def test_a_reward_of_text_is_validated_without_sound(rlhf: Any, tmp_path: Path) -> None:
    rows = [{"prompt": "Hi", "completion": "word " * n, "rating": -n} for n in range(140, 300, 10)]
    file = tmp_path / "rated.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--no-features", "--reward", "programmatic", "--set", "mode=continuous"]
    done = rlhf("tts", "validate", "--clips", file, *options)
    assert done.code == 0, done.err
    assert "programmatic" in done.out
    assert "+0.99" in done.out or "+1.00" in done.out


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"mos": 3}, "has no 'audio' that names a file"),
        ({"audio": "a.wav", "mos": "good"}, "is not a rating"),
    ],
)
def test_rows_that_cannot_be_validated(rlhf: Any, tmp_path: Path, voice: Voice, row: dict[str, Any], says: str) -> None:
    voice("a.wav", seconds=0.2)
    (tmp_path / "rated.jsonl").write_text(json.dumps(row) + "\n")
    refused = rlhf("tts", "validate", "--clips", tmp_path / "rated.jsonl")
    assert refused.code == 2
    assert says in refused.err
    assert "line 1" in refused.err
