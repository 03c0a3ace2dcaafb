"""verl's values for scripts/check/verl_parity.py: ``python _verl_side.py FOLDER`` reads in.npz and asked.json there."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

core_algos: Any = import_module("verl.trainer.ppo.core_algos")
ActorConfig: Any = import_module("verl.workers.config").ActorConfig


def bag(cls: type, **values: object) -> object:
    """An object of one of verl's classes that has just these attributes; the class wants far more."""
    made = object.__new__(cls)
    vars(made).update(values)
    return made


def settings(given: dict[str, Any]) -> object:
    """An actor's configuration with verl's defaults."""
    base = {
        "clip_ratio": 0.2,
        "clip_ratio_low": None,
        "clip_ratio_high": None,
        "clip_ratio_c": 3.0,
        "global_batch_info": {},
    }
    policy_loss = SimpleNamespace(**given.pop("policy_loss", {}))
    return bag(ActorConfig, **{**base, **given, "policy_loss": policy_loss})


folder = sys.argv[1]
asked = json.loads(Path(folder, "asked.json").read_text())
given = {name: torch.tensor(value) for name, value in np.load(f"{folder}/in.npz").items()}
mask, out = given["mask"].double(), {}
for name, (theirs, chosen) in asked["losses"].items():
    new = given["new"].clone().requires_grad_(True)
    mode = "seq-mean-token-mean" if theirs in ("gspo", "sapo", "geo_mean") else "token-mean"
    torch.manual_seed(0)
    loss, _ = core_algos.get_policy_loss_fn(theirs)(given["old"], new, given["advantage"], mask, mode, settings(chosen))
    loss.backward()
    assert new.grad is not None
    out |= {f"{name}/value": loss.item(), f"{name}/gradient": new.grad.numpy()}
rewards = torch.zeros_like(mask)
rewards[torch.arange(len(mask)), mask.sum(-1).long() - 1] = given["reward"]
more = {
    "grpo_passk": {"config": {"norm_adv_by_std_in_grpo": True}},
    "remax": {"reward_baselines": given["greedy"]},
    "optimal_token_baseline": {"old_log_probs": given["old"], "sum_pi_squared": given["old"].exp().square()},
}
for name, theirs in asked["advantages"].items():
    estimate = core_algos.get_adv_estimator_fn(theirs)
    kinds = {"token_level_rewards": rewards, "response_mask": mask, "index": given["group"].numpy()}
    advantage, _ = estimate(**kinds, **more.get(theirs, {}))
    out[f"{name}/advantage"] = (advantage * mask).numpy()
np.savez(f"{folder}/out.npz", **out)
