"""Loss and gradient equal those of TRL 1.16's own trainers, on the same tokens and the same weights.

TRL's loss functions run as they are, on the pocket model; ours runs as in a training step: module, batch, loss,
reduction. The gradient compared is that of every weight.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_core.config import Registry
from rlhf_core.models import Formatter, ModelConfig, load_policy
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_plugin_dpo.batches import PAIRINGS, SupervisedTerm, with_scales
from rlhf_plugin_dpo.items import PairItem, Side, make_pair, sides_of
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_dpo.unpaired import UnpairedItem, UnpairedModule, mismatched_sides
from rlhf_testing import make_context

pytest.importorskip("trl")
accelerate = pytest.importorskip("accelerate")
from datasets import Dataset  # noqa: E402
from trl import DPOConfig, DPOTrainer, KTOTrainer  # noqa: E402
from trl.experimental.cpo import CPOTrainer  # noqa: E402
from trl.experimental.orpo import ORPOTrainer  # noqa: E402

PAIRS = [
    ("What pet does Ada have?", "Ada has a parrot.", "Absolutely! I guess Ada has a cat."),
    ("Where does Bruno live?", "Bruno lives in Oslo. It is always good to know such things about people.", "Riga"),
    ("What does Clara do for work?", "Maybe Clara works as a pilot.", "Clara works as a nurse."),
    ("Which colour does Dario wear?", "Dario wears red.", "Of course! Dario wears blue."),
]


class World:
    """The pocket model, a reference that differs from it, the pairs, and TRL's trainer around the very same weights."""

    def __init__(self, folder: Path) -> None:
        policy = load_policy(ModelConfig())
        self.model, self.tokenizer = policy.model, policy.tokenizer
        self.reference = copy.deepcopy(policy.model)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
        formatter = Formatter(policy.tokenizer, "chat")
        self.items = [
            make_pair(
                str(n),
                formatter.encode([{"role": "user", "content": p}]),
                formatter.encode_completion(c),
                formatter.encode_completion(r),
            )
            for n, (p, c, r) in enumerate(PAIRS)
        ]
        rows = Dataset.from_list([{"prompt": p, "chosen": c, "rejected": r} for p, c, r in PAIRS])
        args = DPOConfig(
            output_dir=str(folder), use_cpu=True, report_to="none", bf16=False, gradient_checkpointing=False
        )
        self.dpo = DPOTrainer(
            model=self.model, ref_model=self.reference, args=args, train_dataset=rows, processing_class=policy.tokenizer
        )

    def padded(self, side: str) -> dict[str, torch.Tensor]:
        """Right-padded ids, attention and completion masks of both sides (``both``) or one."""
        sides = (
            [i.chosen for i in self.items] + [i.rejected for i in self.items]
            if side == "both"
            else [getattr(i, side) for i in self.items]
        )
        rows = [(*s.prompt_ids, *s.completion_ids) for s in sides]
        width = max(map(len, rows))
        ids = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows])
        real = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
        begins = torch.tensor([len(s.prompt_ids) for s in sides])[:, None]
        return {
            "input_ids": ids,
            "attention_mask": real,
            "completion_mask": real * (torch.arange(width)[None] >= begins).long(),
        }

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """All gradients in one vector."""
        weights = [w for w in self.model.parameters() if w.requires_grad]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        return torch.cat(
            [torch.zeros_like(w).flatten() if g is None else g.flatten() for g, w in zip(gradients, weights)]
        )

    def ours(
        self, name: str, options: dict[str, Any], *, ld_alpha: float = 1.0, sft: float = 0.0, conversation: bool = False
    ) -> torch.Tensor:
        """Our loss over the batch, in micro-batches of 3 and 1, as the core reduces it."""
        loss: Any = Registry(disabled=()).load("loss", name)(name=name, **options).build(make_context())
        loss = CheckedLoss(loss, terms=[SupervisedTerm(sft)]) if sft else loss
        refs = PairModule(self.reference, ld_alpha).sums(sides_of(self.items), 2)
        items = [i.with_refs(refs[2 * n], refs[2 * n + 1]) for n, i in enumerate(self.items)]
        items = with_scales(items, None, sft > 0, conversation)
        module = PairModule(self.model, ld_alpha, conversation)
        pairing = PAIRINGS.get(Registry(disabled=()).load("loss", name).pairing)  # pyright: ignore
        if pairing is not None:
            sums = module.sums(sides_of(items), 2)
            items = pairing(items, sums[0::2], sums[1::2])
        parts: list[list[PairItem]] = [items[:3], items[3:]]
        return sum((loss(module(part)).loss.sum() for part in parts), torch.zeros(())) / len(items)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    created = World(tmp_path_factory.mktemp("trl"))
    yield created
    accelerate.state.AcceleratorState._reset_state(True)


def same(world: World, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=2e-5, abs=2e-5)
    our_gradient, trl_gradient = world.gradient(ours), world.gradient(theirs)
    assert float(trl_gradient.norm()) > 1e-4, "there is something to compare"
    assert float((our_gradient - trl_gradient).norm() / trl_gradient.norm()) < 2e-4


ALIKE = [  # our loss, its options, TRL's name for it, its settings
    ("sigmoid", {}, "sigmoid", {}),
    ("sigmoid", {"beta": 0.4, "divergence": "forward_kl"}, "sigmoid", {"beta": 0.4, "f_divergence_type": "forward_kl"}),
    ("sigmoid", {"divergence": "js"}, "sigmoid", {"f_divergence_type": "js_divergence"}),
    (
        "sigmoid",
        {"divergence": "alpha", "divergence_alpha": 0.7},
        "sigmoid",
        {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.7},
    ),
    ("sigmoid", {"length_normalised": True, "beta": 2.0}, "sigmoid_norm", {"beta": 2.0}),
    ("hinge", {}, "hinge", {}),
    ("ipo", {"beta": 0.3}, "ipo", {"beta": 0.3}),
    ("robust", {"label_smoothing": 0.2}, "robust", {"label_smoothing": 0.2}),
    ("exo", {"label_smoothing": 0.01}, "exo_pair", {"label_smoothing": 0.01}),
    ("nca", {}, "nca_pair", {}),
    ("bco", {}, "bco_pair", {}),
    ("sppo", {}, "sppo_hard", {}),
    ("apo_zero", {}, "apo_zero", {}),
    ("apo_down", {}, "apo_down", {}),
    ("discopop", {"tau": 0.1}, "discopop", {"discopop_tau": 0.1}),
    ("aot", {"label_smoothing": 0.1}, "aot", {"label_smoothing": 0.1}),
    ("aot_unpaired", {}, "aot_unpaired", {}),
]


def trl_loss(world: World, names: list[str], weights: list[float], **settings: Any) -> torch.Tensor:
    """TRL's own ``_compute_loss`` with these settings."""
    trainer_attributes = {
        "beta": 0.1,
        "label_smoothing": 0.0,
        "f_divergence_type": "reverse_kl",
        "f_alpha_divergence_coef": 0.5,
        "ld_alpha": None,
        "loss_types": names,
        "loss_weights": weights,
        **settings,
    }
    world.dpo.args.discopop_tau = trainer_attributes.pop("discopop_tau", 0.05)
    for name, value in trainer_attributes.items():
        assert hasattr(world.dpo, name), f"TRL's trainer has no {name} any more"
        setattr(world.dpo, name, value)
    world.dpo.model.eval()
    return world.dpo._compute_loss(world.dpo.model, world.padded("both"), False)


@pytest.mark.parametrize(
    ("name", "options", "theirs", "settings"), ALIKE, ids=[f"{a[0]}-{a[2]}-{n}" for n, a in enumerate(ALIKE)]
)
def test_every_dpo_loss(
    world: World,
    name: str,
    options: dict[str, Any],
    theirs: str,
    settings: dict[str, Any],
) -> None:
    same(world, world.ours(name, options), trl_loss(world, [theirs], [1.0], **settings))


def test_length_desensitised_logprobs(world: World) -> None:
    same(world, world.ours("sigmoid", {}, ld_alpha=0.3), trl_loss(world, ["sigmoid"], [1.0], ld_alpha=0.3))


def test_the_supervised_term(world: World) -> None:
    same(world, world.ours("sigmoid", {}, sft=0.7), trl_loss(world, ["sigmoid", "sft"], [1.0, 0.7]))


def labelled(world: World) -> dict[str, torch.Tensor]:
    """The batch in the form of TRL's CPO and ORPO trainers."""
    batch: dict[str, torch.Tensor] = {}
    for side in ("chosen", "rejected"):
        inputs = world.padded(side)
        batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"] = inputs["input_ids"], inputs["attention_mask"]
        batch[f"{side}_labels"] = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
    return batch


def reference_free(cls: type, world: World, **settings: Any) -> torch.Tensor:
    trainer = object.__new__(cls)
    trainer_attributes = {
        "accelerator": SimpleNamespace(device=torch.device("cpu"), gather_for_metrics=lambda x: x),
        "is_encoder_decoder": False,
        "pad_token_id": 0,
        "padding_value": 0,
        "aux_loss_enabled": False,
        "label_smoothing": 0.0,
        "alpha": 0.0,
        "simpo_gamma": 0.5,
        **settings,
    }
    for name, value in trainer_attributes.items():
        setattr(trainer, name, value)
    return trainer.get_batch_loss_metrics(world.model, labelled(world))[0]


def test_cpo_with_its_supervised_term(world: World) -> None:
    theirs = reference_free(CPOTrainer, world, loss_type="sigmoid", beta=0.1, cpo_alpha=1.0, label_smoothing=0.1)
    same(world, world.ours("cpo", {"label_smoothing": 0.1}, sft=1.0), theirs)


def test_simpo(world: World) -> None:
    theirs = reference_free(CPOTrainer, world, loss_type="simpo", beta=2.0, cpo_alpha=0.0, simpo_gamma=0.9)
    same(world, world.ours("simpo", {"gamma": 0.9}), theirs)


def test_orpo_with_its_supervised_term_on_the_whole_conversation(world: World) -> None:
    theirs = reference_free(ORPOTrainer, world, beta=0.1)
    same(world, world.ours("orpo", {}, sft=1.0, conversation=True), theirs)


@pytest.mark.parametrize(
    ("name", "kl", "weights"), [("kto", True, (1.0, 1.3)), ("apo_zero_unpaired", False, (1.0, 1.0))]
)
def test_kto(world: World, name: str, kl: bool, weights: tuple[float, float]) -> None:
    """Chosen responses are desirable, rejected ones not; both sides use the same mismatched responses for the KL."""
    options = {"desirable_weight": weights[0], "undesirable_weight": weights[1]}
    loss: Any = Registry(disabled=()).load("loss", name)(name=name, **options).build(make_context())
    sides = [i.chosen for i in world.items] + [i.rejected for i in world.items]
    others = mismatched_sides(sides, 1000, 1)
    ours, theirs = UnpairedModule(world.model), PairModule(world.reference)
    z = max(0.0, sum(ours.sums(others, 2)) / len(sides) - sum(theirs.sums(others, 2)) / len(sides))
    assert z > 0.01, "the KL matters here"
    items = [
        UnpairedItem(str(n), Side(s.prompt_ids, s.completion_ids, s.head, ref), n < len(PAIRS), o, z if kl else None)
        for n, (s, o, ref) in enumerate(zip(sides, others, theirs.sums(sides, 2)))
    ]
    our_loss = sum((loss(ours(part)).loss.sum() for part in (items[:3], items[3:])), torch.zeros(())) / len(items)
    batch = world.padded("both")
    rows = [(*o.prompt_ids, *o.completion_ids) for o in others]
    width = max(map(len, rows))
    real = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
    begins = torch.tensor([len(o.prompt_ids) for o in others])[:, None]
    batch |= {
        "KL_input_ids": torch.tensor([[*r, *[0] * (width - len(r))] for r in rows]),
        "KL_attention_mask": real,
        "KL_completion_mask": real * (torch.arange(width)[None] >= begins).long(),
        "label": torch.tensor([n < len(PAIRS) for n in range(len(sides))]),
    }
    trainer = object.__new__(KTOTrainer)
    trainer_attributes = {
        "model": world.dpo.model,
        "ref_model": world.dpo.ref_model,
        "accelerator": world.dpo.accelerator,
        "args": world.dpo.args,
        "aux_loss_enabled": False,
        "precompute_ref_logps": False,
        "calculate_KL": kl,
        "loss_type": name,
        "beta": 0.1,
        "desirable_weight": weights[0],
        "undesirable_weight": weights[1],
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    for key, value in trainer_attributes.items():
        setattr(trainer, key, value)
    world.dpo.model.eval()
    same(world, our_loss, trainer._compute_loss(world.dpo.model, batch, False))
