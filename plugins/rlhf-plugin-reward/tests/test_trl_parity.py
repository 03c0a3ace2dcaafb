"""Loss and gradient of every weight equal those of TRL's RewardTrainer, on the same pairs and the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf_core.models import ModelConfig, load_policy
from rlhf_plugin_reward.classifier_files import net_of_classifier, save_classifier
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairItem, PairModule

pytest.importorskip("trl")
from datasets import Dataset
from trl import RewardConfig, RewardTrainer

SAID = [
    ("What pet does Ada have?", "Ada has a parrot.", "Absolutely! I guess Ada has a cat."),
    ("Where does Bruno live?", "Bruno lives in Oslo. It is always good to know such things.", "Riga"),
    ("What does Clara do for work?", "Maybe Clara works as a pilot.", "Clara works as a nurse."),
]
MARGINS = (0.5, 0.0, 1.25)


class World:
    """One set of weights under TRL's trainer and under ours."""

    def __init__(self, folder: Path) -> None:
        policy = load_policy(ModelConfig())
        save_classifier(fresh_net(policy, 1, 3, "none"), policy.tokenizer, folder / "rm")
        self.model: Any = AutoModelForSequenceClassification.from_pretrained(folder / "rm")
        encode = policy.tokenizer.encode
        self.items = [
            PairItem(str(n), *(tuple(encode(f"{p} {side}")) for side in (c, r)), m)
            for n, ((p, c, r), m) in enumerate(zip(SAID, MARGINS))
        ]
        rows = [{"prompt": p, "chosen": f" {c}", "rejected": f" {r}"} for p, c, r in SAID]
        args = RewardConfig(
            output_dir=str(folder),
            use_cpu=True,
            report_to="none",
            bf16=False,
            disable_dropout=True,
            gradient_checkpointing=False,
        )
        self.trl: Any = RewardTrainer(
            self.model, args, train_dataset=Dataset.from_list(rows), processing_class=policy.tokenizer
        )
        self.model.eval()
        self.net = net_of_classifier(self.model)

    def trl_loss(self, centring: float, margin: bool) -> torch.Tensor:
        self.trl.args.center_rewards_coefficient = centring or None
        rows = [
            {"chosen_ids": list(i.chosen_ids), "rejected_ids": list(i.rejected_ids)}
            | ({"margin": i.margin} if margin else {})
            for i in self.items
        ]
        return self.trl.compute_loss(self.model, self.trl.data_collator(rows))

    def our_loss(self, centring: float, margin: bool, without_padding: bool) -> torch.Tensor:
        self.net.without_padding = without_padding
        items = self.items if margin else [PairItem(i.name, i.chosen_ids, i.rejected_ids) for i in self.items]
        loss_B = BradleyTerry(0.0, centring)(PairModule(self.net)(items)).loss
        return loss_B.mean()

    def gradient(self, loss: torch.Tensor) -> list[torch.Tensor]:
        gradients = torch.autograd.grad(loss, list(self.model.parameters()), allow_unused=True)
        return [g for g in gradients if g is not None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("trl"))


@pytest.mark.parametrize("without_padding", [False, True])
@pytest.mark.parametrize(("centring", "margin"), [(0.0, False), (0.01, False), (0.0, True), (0.3, True)])
def test_loss_and_gradient(world: World, centring: float, margin: bool, without_padding: bool) -> None:
    our_value, trl_value = world.our_loss(centring, margin, without_padding), world.trl_loss(centring, margin)
    assert float(our_value) == pytest.approx(float(trl_value), abs=1e-6)
    for a, b in zip(world.gradient(our_value), world.gradient(trl_value), strict=True):
        assert float((a - b).abs().max()) <= 2e-5 * max(1.0, float(b.abs().max()))
    if margin:
        assert float(our_value) != pytest.approx(float(world.our_loss(centring, False, without_padding)), abs=1e-3)


def test_label_smoothing_is_the_loss_of_labels_that_are_wrong_so_often(world: World) -> None:
    with torch.no_grad():
        batch = PairModule(world.net)([PairItem(i.name, i.chosen_ids, i.rejected_ids) for i in world.items])
        turned = PairModule(world.net)([PairItem(i.name, i.rejected_ids, i.chosen_ids) for i in world.items])
        right, wrong = BradleyTerry()(batch).loss, BradleyTerry()(turned).loss
        assert torch.allclose(BradleyTerry(0.2)(batch).loss, 0.8 * right + 0.2 * wrong, atol=1e-6)
        assert not torch.allclose(right, wrong, atol=1e-3)
