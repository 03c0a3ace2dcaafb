"""Losses and estimators against verl's, value and gradient; the record is docs/bench/verl_parity.json.

    python -m scripts.check.verl_parity --peer PYTHON

PYTHON is that of an environment with verl 0.9.1, which needs nothing of ours: ``pip install torch transformers ray
omegaconf hydra-core tensordict codetiming datasets``, then ``pip install --no-deps verl==0.9.1``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.config import Registry
from rlhf_core.losses import TokenBatch
from rlhf_core.rewards import Score
from rlhf_core.training.functional import reduce_loss
from rlhf_testing import make_context, make_rollouts

RECORD = Path(__file__).parents[2] / "docs/bench/verl_parity.json"
PEER = Path(__file__).with_name("_verl_side.py")
GROUPS, GROUP, T = 3, 4, 9
LOSSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo_clip": ("vanilla", {"dual_clip": 3.0}, {"clip_ratio": 0.2, "clip_ratio_c": 3.0}),
    "gspo": ("gspo", {}, {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    "gspo_token": ("gspo", {}, {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    "cispo": ("cispo", {"ratio_max": 1.2}, {"clip_ratio_low": 1.0, "clip_ratio_high": 0.2}),
    "sapo": ("sapo", {}, {"tau_pos": 1.0, "tau_neg": 1.05}),
    "dppo": ("dppo_tv", {}, {"clip_ratio": 0.2, "clip_ratio_c": 20.0}),
    "dppo (kl)": ("dppo_kl", {"divergence": "kl", "divergence_max": 0.02}, {"clip_ratio": 0.02, "clip_ratio_c": 20.0}),
    "gmpo": ("geo_mean", {"clip_range": 0.2}, {"clip_ratio": 0.2}),
    "dro": ("dro", {"beta": 0.5}, {"policy_loss": {"dro_beta": 0.5}}),
    "clip_cov": (
        "clip_cov",
        {"share": 0.06, "covariance_min": 0.1, "covariance_max": 2.0},
        {"clip_ratio": 0.2, "policy_loss": {"clip_cov_ratio": 0.06, "clip_cov_lb": 0.1, "clip_cov_ub": 2.0}},
    ),
    "kl_cov": ("kl_cov", {"share": 0.1, "beta": 0.7}, {"policy_loss": {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}}),
}
"""Ours -> verl's name, our settings, theirs."""
ADVANTAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "group_norm": ("grpo", {}),
    "leave_one_out": ("rloo", {}),
    "optimal_baseline": ("opo", {}),
    "best_of_group": ("grpo_passk", {}),
    "optimal_token_baseline": ("optimal_token_baseline", {}),
    "remax": ("remax", {}),
}
PER_SEQUENCE = ("gspo", "gspo_token", "sapo", "gmpo")


def inputs() -> dict[str, np.ndarray]:
    """Logprobs far enough apart that every bound of every loss is met; float64."""
    rng = np.random.default_rng(0)
    size = GROUPS * GROUP
    lengths = rng.integers(1, T + 1, size)
    old_BT = -rng.exponential(1.0, (size, T)) - 0.05
    return {
        "old": old_BT,
        "new": np.minimum(old_BT + rng.normal(0, 0.5, (size, T)), -0.01),
        "mask": np.arange(T)[None] < lengths[:, None],
        "advantage": np.repeat(rng.normal(0, 1, (size, 1)), T, axis=1),
        "reward": rng.normal(0, 1, size).round(3),
        "group": np.repeat(np.arange(GROUPS), GROUP),
        "greedy": np.repeat(rng.normal(0, 1, GROUPS).round(3), GROUP),
    }


def our_loss(name: str, settings: dict[str, Any], given: dict[str, np.ndarray]) -> tuple[float, np.ndarray]:
    """Mean loss and its gradient by the logprobs."""
    new_BT, mask_BT = torch.tensor(given["new"], requires_grad=True), torch.tensor(given["mask"])
    old_BT, A_BT = torch.tensor(given["old"]), torch.tensor(given["advantage"])
    config = Registry(disabled=()).load("loss", name.split()[0])(**settings)
    torch.manual_seed(0)  # clip_cov draws tokens; so does the other side
    loss_BT = config.build(make_context())(TokenBatch(new_BT, mask_BT, A_BT, old_BT, None, None, None)).loss
    reduction = "sequence_mean" if name in PER_SEQUENCE else "token_mean"
    loss = reduce_loss(loss_BT, mask_BT, reduction, float(len(mask_BT) if name in PER_SEQUENCE else mask_BT.sum()))
    loss.backward()
    assert new_BT.grad is not None
    return loss.item(), new_BT.grad.numpy()


def our_advantages(name: str, settings: dict[str, Any], given: dict[str, np.ndarray]) -> np.ndarray:
    """``[B, T]``, 0 where masked."""
    rollouts, _ = make_rollouts(GROUPS, GROUP)
    rows = [
        replace(rollout, logprobs_T=old_T[mask_T], completion_ids=(1,) * int(mask_T.sum()), mask_T=None)
        for rollout, old_T, mask_T in zip(rollouts, given["old"], given["mask"])
    ]
    estimator = Registry(disabled=()).load("advantage", name)(**settings).build(make_context())
    scores = [
        Score(float(r), parts={"greedy": float(g)}) for r, g in zip(given["reward"], given["greedy"], strict=True)
    ]
    estimate = estimator.estimate(rows, scores, given["group"].tolist())
    out_BT = np.zeros((len(rows), T))
    for b, value in enumerate(estimate.values):
        out_BT[b, : given["mask"][b].sum()] = value
    return out_BT


def main() -> None:
    """Compare, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True)
    peer = parser.parse_args().peer
    given = inputs()
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/in.npz", **given)  # pyright: ignore[reportArgumentType]
        asked = {
            "losses": {n: [v, s] for n, (v, _, s) in LOSSES.items()},
            "advantages": {n: v for n, (v, _) in ADVANTAGES.items()},
        }
        Path(folder, "asked.json").write_text(json.dumps(asked))
        subprocess.run([peer, str(PEER), folder], check=True)
        theirs = dict(np.load(f"{folder}/out.npz"))
    record: dict[str, Any] = {"peer": "verl 0.9.1", "command": "python -m scripts.check.verl_parity --peer PYTHON"}
    for name, (peer_name, settings, _) in LOSSES.items():
        value, gradient = our_loss(name, settings, given)
        error = max(abs(value - theirs[f"{name}/value"]), np.abs(gradient - theirs[f"{name}/gradient"]).max())
        record.setdefault("losses", {})[name] = {"theirs": peer_name, "largest_difference": float(error)}
    for name, (peer_name, settings) in ADVANTAGES.items():
        error = np.abs(our_advantages(name, settings, given) - theirs[f"{name}/advantage"]).max()
        record.setdefault("advantages", {})[name] = {"theirs": peer_name, "largest_difference": float(error)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
