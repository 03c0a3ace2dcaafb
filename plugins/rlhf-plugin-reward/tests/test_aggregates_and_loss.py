"""Members to one score, bootstrap samples, and the pair loss: numbers checked by hand or by another library."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rlhf_core.losses import PairBatch
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.pairs import PairItem, bootstrap
from rlhf_plugin_reward.reward import aggregate, calibration_error, quality, standardise

SCORES_NK = np.array([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
STD = np.sqrt(14 / 3)  # of 1, 2, 6 over all three


@pytest.mark.parametrize(
    ("how", "expected"),
    [("mean", [3.0, 4.0]), ("min", [1.0, 4.0]), ("median", [2.0, 4.0]), ("mean_minus_std", [3.0 - 0.5 * STD, 4.0])],
)
def test_every_aggregate(how: str, expected: list[float]) -> None:
    assert aggregate(SCORES_NK, how, 0.5) == pytest.approx(expected)


def test_standardised_members_are_on_one_scale() -> None:
    raw_NK = np.array([[10.0, 0.1], [30.0, 0.3], [20.0, 0.2]])
    out = standardise(raw_NK, raw_NK.mean(0), raw_NK.std(0))
    assert out[:, 0] == pytest.approx(out[:, 1])
    assert np.isfinite(standardise(np.ones((3, 1)), np.ones(1), np.zeros(1))).all(), "a member that says one thing"


def test_calibration_error() -> None:
    sure = np.log(9.0)  # sigmoid: 0.9
    assert calibration_error(np.array([sure] * 9 + [-sure])) == pytest.approx(0.0)
    assert calibration_error(np.array([sure] * 5 + [-sure] * 5)) == pytest.approx(0.4)


def test_quality_counts_what_the_aggregate_prefers() -> None:
    chosen, rejected = np.array([[1.0, 1.0], [1.0, -3.0]]), np.array([[0.0, 0.0], [0.0, 0.0]])
    result = quality(chosen, rejected, "mean", 0.0, np.zeros(2), np.ones(2))
    assert [m["accuracy"] for m in result["members"]] == [1.0, 0.5]
    assert result["ensemble"]["accuracy"] == 0.5
    assert result["pairs"] == 2


def test_bootstrap_samples_differ_and_are_as_large_as_the_data() -> None:
    items = [PairItem(f"p{i}", (1,), (2,)) for i in range(200)]
    counts = np.array([i.counts_K for i in bootstrap(items, 3, seed=5)])
    assert counts.sum(0).tolist() == [200, 200, 200]
    assert not np.array_equal(counts[:, 0], counts[:, 1])
    assert 0.30 < (counts == 0).mean() < 0.44, "about 1/e of the pairs are left out"
    assert np.array_equal(counts, np.array([i.counts_K for i in bootstrap(items, 3, seed=5)]))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_is_the_cross_entropy_of_the_preference(smoothing: float) -> None:
    chosen, rejected, margin = torch.tensor([2.0, -1.0, 0.3]), torch.tensor([0.5, 1.0, 0.3]), torch.tensor([0, 0.5, 1])
    out = BradleyTerry(smoothing, 0.25)(PairBatch(chosen, rejected, margin_B=margin))
    target = torch.full((3,), 1 - smoothing)
    expected = binary_cross_entropy_with_logits(chosen - rejected - margin, target, reduction="none")
    assert torch.allclose(out.loss, expected + 0.25 * (chosen + rejected) ** 2)
    hits, pairs = out.metrics["accuracy"]
    assert (float(hits), float(pairs)) == (1.0, 3.0), "a tie is no hit, and the margin does not count"


def test_metrics_follow_the_weights() -> None:
    batch = PairBatch(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), weights_B=torch.tensor([3.0, 1.0]))
    hits, pairs = BradleyTerry()(batch).metrics["accuracy"]
    assert float(hits) / float(pairs) == 0.75
