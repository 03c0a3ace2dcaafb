"""Loss and gradient equal those of TRL 1.16's own code on the same tensors.

TRL's trainers compute log-probabilities inside their loss; only that forward is replaced (by a function that returns
the tensors), everything else of ``_compute_loss`` runs as it is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.config import Registry
from rlhf_core.config.load import validate
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.losses import TokenBatch
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_core.rl.update import PolicyTerms
from rlhf_core.training import TrainingSample
from rlhf_core.training.functional import reduce_loss
from rlhf_plugin_schedule.uncertain import keep_uncertain
from rlhf_testing import make_context

accelerate = pytest.importorskip("accelerate")
trl = pytest.importorskip("trl")
from trl import GRPOConfig, GRPOTrainer, RLOOTrainer  # noqa: E402

B, T, MAX_TOKENS = 6, 7, 9


def tensors() -> dict[str, torch.Tensor]:
    """A batch far enough off policy that every kind of clipping acts on some tokens."""
    g = torch.Generator().manual_seed(3)
    old = -torch.rand(B, T, generator=g, dtype=torch.float64) * 3 - 0.1
    mask = torch.arange(T)[None] < torch.tensor([7, 5, 1, 3, 6, 2])[:, None]
    return {
        "old": old,
        "new": old + torch.randn(B, T, generator=g, dtype=torch.float64) * 0.6,
        "mask": mask,
        "ref": old + torch.randn(B, T, generator=g, dtype=torch.float64) * 0.2,
        "entropy": torch.rand(B, T, generator=g, dtype=torch.float64) * 2,
        "advantages": torch.tensor([1.0, -1.0, 0.5, -2.0, 2.0, -0.3], dtype=torch.float64),
    }


def run_trl(cls: type, data: dict[str, torch.Tensor], args: Any, **attributes: Any) -> tuple[torch.Tensor, ...]:
    """TRL's loss, and its gradients with respect to logprobs and entropies."""
    trainer = object.__new__(cls)
    logps, entropies = data["new"].clone().requires_grad_(), data["entropy"].clone().requires_grad_()
    model = torch.nn.Linear(1, 1).train()
    trainer_attributes = {
        "args": args,
        "model": model,
        "accelerator": accelerate.Accelerator(cpu=True),
        "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "current_gradient_accumulation_steps": 1,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "top_entropy_quantile": 1.0,
        "use_vllm": False,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "max_completion_length": MAX_TOKENS,
        "_entropy_bonus_enabled": False,
        "use_adaptive_entropy": False,
        "entropy_coef": 0.0,
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logps, entropies, None),
        **attributes,
    }
    for name, value in trainer_attributes.items():
        setattr(trainer, name, value)
    mask = data["mask"].long()
    inputs = {
        "prompt_ids": torch.ones(B, 2, dtype=torch.long),
        "prompt_mask": torch.ones(B, 2, dtype=torch.long),
        "completion_ids": torch.ones(B, T, dtype=torch.long),
        "completion_mask": mask,
        "advantages": data["advantages"],
        "old_per_token_logps": data["old"],
        "ref_per_token_logps": data["ref"],
        "old_logps": (data["old"] * mask).sum(1),
        "num_items_in_batch": mask.sum(),
    }
    loss = trainer._compute_loss(model, inputs)
    gradients = torch.autograd.grad(loss, (logps, entropies), allow_unused=True)
    return loss.detach(), *(torch.zeros_like(logps) if gradient is None else gradient for gradient in gradients)


def run_ours(
    name: str, data: dict[str, torch.Tensor], *, wrap: Any = None, trainer: Any = None, **options: Any
) -> tuple[torch.Tensor, ...]:
    """Our loss as a run has it: the loss's recipe decides the reduction, and the core's own function reduces."""
    config = validate(
        Registry(disabled=()),
        {"trainer": {"name": "grpo", **(trainer or {})}, "loss": {"name": name, **options}, "reward": "verifier"},
    )
    assert config.loss is not None
    loss = config.loss.build(make_context())
    loss = wrap(loss) if wrap else loss
    logps, entropies = data["new"].clone().requires_grad_(), data["entropy"].clone().requires_grad_()
    advantages = data.get("advantages_BT", data["advantages"][:, None].expand(B, T))
    out = loss(TokenBatch(logps, data["mask"], advantages, data["old"], data["ref"], data["old"], entropies))
    settings: Any = config.trainer
    denominator = {
        "token_mean": float(data["mask"].sum()),
        "sequence_mean": float(B),
        "constant": B * settings.constant_length,
    }[settings.reduction]
    value = reduce_loss(out.loss, data["mask"], settings.reduction, denominator)
    gradients = torch.autograd.grad(value, (logps, entropies), allow_unused=True)
    return value.detach(), *(torch.zeros_like(logps) if gradient is None else gradient for gradient in gradients)


def trl_args(**options: Any) -> Any:
    """TRL's own defaults, with a few fields changed."""
    defaults = {
        f: GRPOConfig.__dataclass_fields__[f].default
        for f in (
            "delta",
            "use_bias_correction_kl",
            "sapo_temperature_pos",
            "sapo_temperature_neg",
            "vespo_k_pos",
            "vespo_lambda_pos",
            "vespo_k_neg",
            "vespo_lambda_neg",
            "entropy_target",
        )
    }
    return SimpleNamespace(**{**defaults, "steps_per_generation": 1, **options})


def same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> None:
    for ours, theirs in zip(a, b, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), (ours, theirs)


SEQUENCE = {"reduction": "sequence_mean"}
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # TRL's loss_type, ours, our options, our trainer's settings, TRL's attributes
    ("grpo", "grpo_clip", {}, SEQUENCE, {}),
    ("grpo", "grpo_paper", {}, {"kl": {"coefficient": 0}}, {}),
    ("bnpo", "bnpo", {}, {}, {}),
    ("dr_grpo", "dr_grpo", {}, {"sampling": {"max_tokens": MAX_TOKENS}}, {}),
    ("dapo", "dapo", {}, {}, {"epsilon_high": 0.28}),
    ("grpo", "gspo", {}, {}, {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    ("luspo", "luspo", {}, {}, {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    ("cispo", "cispo", {"ratio_max": 1.5}, {}, {"epsilon_high": 1.5}),
    ("sapo", "sapo", {}, {}, {}),
    ("vespo", "vespo", {}, {}, {}),
    ("dapo", "ppo_clip", {"dual_clip": 1.6}, {}, {"args": {"delta": 1.6}}),
    ("grpo", "grpo_no_clip", {}, SEQUENCE, {"epsilon_low": 1e9, "epsilon_high": 1e9}),
    (
        "cispo",
        "cispo",
        {"ratio_max": 1.5, "importance_level": "sequence"},
        {},
        {"epsilon_high": 1.5, "importance_sampling_level": "sequence"},
    ),
    ("sapo", "sapo", {"importance_level": "sequence"}, {}, {"importance_sampling_level": "sequence"}),
    ("bnpo", "bnpo", {"importance_level": "sequence"}, {}, {"importance_sampling_level": "sequence"}),
]


@pytest.mark.parametrize(
    ("kind", "name", "options", "trainer", "attributes"),
    CASES,
    ids=[f"{c[0]}-{c[1]}-{c[2].get('importance_level', '')}" for c in CASES],
)
def test_loss_and_gradient_equal_trls(
    kind: str, name: str, options: dict[str, Any], trainer: dict[str, Any], attributes: dict[str, Any]
) -> None:
    trl_options = {k: v for k, v in attributes.items() if k != "args"}
    theirs = run_trl(GRPOTrainer, tensors(), trl_args(**attributes.get("args", {})), loss_type=kind, **trl_options)
    ours = run_ours(name, tensors(), trainer=trainer, **options)
    same(ours, theirs)
    assert ours[1].abs().max() > 0


def test_every_loss_type_of_trl_is_covered() -> None:
    text = GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    loss_types = set(re.findall(r"'(\w+)'", text)) - {"sequence"}
    assert loss_types == {c[0] for c in CASES}


def test_rloos_loss_and_gradient_equal_trls() -> None:
    data = tensors()
    data["new"] = data["old"] + (data["new"] - data["old"]) * 0.2  # products of ratios on both sides of the clip
    same(run_ours("rloo", data), run_trl(RLOOTrainer, data, trl_args()))


def test_the_entropy_bonus_equals_trls() -> None:
    theirs = run_trl(
        GRPOTrainer, tensors(), trl_args(), loss_type="dapo", _entropy_bonus_enabled=True, entropy_coef=0.03
    )
    ours = run_ours(
        "grpo_clip", tensors(), wrap=lambda loss: CheckedLoss(loss, terms=[PolicyTerms(entropy_coefficient=0.03)])
    )
    same(ours, theirs)
    assert ours[2].abs().max() > 0


def test_the_top_quantile_of_entropy_is_trls() -> None:
    data = tensors()
    theirs = run_trl(GRPOTrainer, data, trl_args(), loss_type="grpo", top_entropy_quantile=0.3)
    samples = [
        TrainingSample(str(b), (1,), tuple(range(n)), np.ones(n, bool), np.full(n, float(a), np.float32))
        for b, (n, a) in enumerate(zip(data["mask"].sum(-1).tolist(), data["advantages"].tolist()))
    ]
    entropies = [data["entropy"][b, : sample.tokens].numpy() for b, sample in enumerate(samples)]
    kept_samples, _ = keep_uncertain(samples, entropies, 0.3, LocalStrategy())
    data["advantages_BT"] = torch.zeros(B, T, dtype=torch.float64)
    for b, sample in enumerate(kept_samples):
        data["advantages_BT"][b, : sample.tokens] = torch.from_numpy(sample.advantages_T).double()
    for our_value, trl_value in zip(run_ours("grpo_clip", data, trainer=SEQUENCE), theirs, strict=True):
        assert torch.allclose(our_value, trl_value, rtol=1e-6, atol=1e-7)
    assert 0 < int((theirs[1] != 0).sum()) <= 0.35 * int(data["mask"].sum())


def test_the_kl_terms_value_equals_trls() -> None:
    """Value only: TRL differentiates k3 itself, which is the gradient of the other KL (see functional/kl.py)."""
    args = trl_args(use_bias_correction_kl=True)
    theirs = run_trl(GRPOTrainer, tensors(), args, loss_type="dapo", beta=0.1)
    ours = run_ours("grpo_clip", tensors(), wrap=lambda loss: CheckedLoss(loss, terms=[PolicyTerms(0.1)]))
    assert torch.allclose(ours[0], theirs[0], rtol=1e-9)
