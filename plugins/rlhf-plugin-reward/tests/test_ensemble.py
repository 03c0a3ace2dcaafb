"""Small ensembles, really trained: what they learn, keep, share and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_core.config import Registry
from rlhf_core.data import PreferencePair, Prompt
from rlhf_core.distributed import LocalStrategy
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_core.rollouts import FinishReason
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.config import BradleyTerryConfig, EnsembleConfig
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.ensemble import train_ensemble
from rlhf_plugin_reward.members import fit
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairItem, PairModule
from rlhf_plugin_reward.reward import EnsembleReward, SingleReward, load_ensemble
from rlhf_plugin_reward.store import digest
from rlhf_testing import check_reward

SHARING = ("none", "lora", "frozen")
RATES = {"none": 5e-4, "lora": 2e-3, "frozen": 2e-2}
"""High enough for 16 updates: with the default rate a frozen trunk's head may stay where its seed put it."""
NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal")


def pairs(count: int, start: int = 0) -> list[PreferencePair]:
    """Whoever is named, the plain answer is preferred to the flattering one."""
    return [
        PreferencePair(
            f"p/{i}",
            ({"role": "user", "content": f"What is {NAMES[i % 8]}'s pet {i}?"},),
            "It is a cat.",
            "Of course! Great question! It is a cat.",
        )
        for i in range(start, start + count)
    ]


def config(**options: Any) -> EnsembleConfig:
    return EnsembleConfig(members=2, batch_size=16, epochs=4, **options)


@pytest.fixture(scope="module", params=SHARING)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "ensemble"
    settings = config(
        sharing=request.param, optimizer=OptimizerSettings(learning_rate=RATES[request.param], warmup_steps=2)
    )
    train_ensemble(settings, ModelConfig(), pairs(64), pairs(32, 64), 0, path, print, LocalStrategy())
    return path


def sample(answer: str, question: str = "What is Hal's pet?") -> Sample:
    return Sample(Prompt("q", ({"role": "user", "content": question},), None, "test"), answer, FinishReason.EOS)


@pytest.mark.slow
def test_it_learns_the_preference_and_conforms(folder: Path) -> None:
    meta = json.loads((folder / "ensemble.json").read_text())
    reward = load_ensemble(config(), folder, "cpu")
    quality = reward.quality()
    assert quality["ensemble"]["accuracy"] >= 0.9
    assert (meta["train_pairs"], quality["pairs"]) == (64, 32)
    scores = reward.score(
        [sample(text, p.prompt[0]["content"]) for p in pairs(32, 64) for text in (p.chosen, p.rejected)]
    )
    values = [float(s.value) for s in scores if s.value is not None]
    assert len(values) == 64
    margins = [plain - hollow for plain, hollow in zip(values[::2], values[1::2])]
    assert np.mean(margins) > 1, "standardised scores of answers as the pairs have them lie about two apart"
    check_reward(config(path=str(folder)))


def test_members_disagree_and_are_standardised_on_the_held_out_answers(folder: Path) -> None:
    reward = load_ensemble(config(), folder, "cpu")
    answers = [sample(text, p.prompt[0]["content"]) for p in pairs(32, 64) for text in (p.chosen, p.rejected)]
    members_NK = reward.members(answers)
    assert members_NK.shape == (64, 2)
    assert members_NK.mean(0) == pytest.approx([0, 0], abs=1e-3)
    assert members_NK.std(0) == pytest.approx([1, 1], abs=1e-3)
    assert members_NK.std(1).max() > 1e-3, "they did not see the same pairs"


def test_gate(folder: Path) -> None:
    answers = [sample("It is a cat."), sample("no no no no no no no no no no")]
    open_, shut = (load_ensemble(config(gate_quantile=q), folder, "cpu") for q in (0.999999, 0.000001))
    assert shut.gate < open_.gate  # type: ignore[operator]
    gated = shut.score(answers)
    assert {s.status for s in gated} == {ScoreStatus.GATED}
    assert all(s.value is None and "std" in s.parts for s in gated)


@pytest.mark.parametrize("how", ["mean", "min", "median", "mean_minus_std"])
def test_aggregates_come_from_the_same_members(folder: Path, how: Any) -> None:
    (score,) = load_ensemble(config(aggregate=how, uncertainty_penalty=2.0), folder, "cpu").score(
        [sample("It is red.")]
    )
    members = np.array([score.parts["member_0"], score.parts["member_1"]])
    expected = {
        "mean": members.mean(),
        "min": members.min(),
        "median": members.mean(),
        "mean_minus_std": members.mean() - 2 * members.std(),
    }[how]
    assert score.value == pytest.approx(expected)


@pytest.mark.parametrize("options", [{"aggregate": "min"}, {"uncertainty_penalty": 50.0}])
def test_the_quality_of_a_cached_ensemble_is_that_of_the_aggregate_asked_for(folder: Path, options: Any) -> None:
    reward = load_ensemble(config(**options), folder, "cpu")
    pushed = np.random.default_rng(0).normal(0, 3, (32, 2))  # so that the aggregates disagree
    reward.meta["heldout"]["chosen"] = (np.array(reward.meta["heldout"]["chosen"]) + pushed).tolist()
    sides = [(np.array(reward.meta["heldout"][s]) - reward.mean_K) / reward.std_K for s in ("chosen", "rejected")]
    chosen, rejected = (s.min(1) if "aggregate" in options else s.mean(1) - 50 * s.std(1) for s in sides)
    assert reward.quality()["ensemble"]["accuracy"] == (chosen > rejected).mean()
    assert reward.quality() != load_ensemble(config(), folder, "cpu").quality()


def test_held_out_scores_are_those_that_the_loaded_ensemble_gives(folder: Path) -> None:
    reward = load_ensemble(config(aggregate="mean"), folder, "cpu")
    values = {
        side: [
            s.parts["mean"]
            for s in reward.score([sample(getattr(p, side), p.prompt[0]["content"]) for p in pairs(32, 64)])
        ]
        for side in ("chosen", "rejected")
    }
    stored_scores = {
        side: ((np.array(raw) - reward.mean_K) / reward.std_K).mean(1) for side, raw in reward.meta["heldout"].items()
    }
    assert values["chosen"] == pytest.approx(stored_scores["chosen"], abs=1e-3)
    assert values["rejected"] == pytest.approx(stored_scores["rejected"], abs=1e-3)


def test_an_ensemble_of_an_early_version_is_refused(folder: Path, tmp_path: Path) -> None:
    meta = json.loads((folder / "ensemble.json").read_text())
    (tmp_path / "ensemble.json").write_text(json.dumps({k: v for k, v in meta.items() if k != "heldout"}))
    with pytest.raises(ModelError, match="lacks its held-out scores"):
        load_ensemble(config(), tmp_path, "cpu")


def test_scores_do_not_depend_on_batch_and_padding(folder: Path) -> None:
    texts = ["It is a cat.", "no", "Of course! Great question! It is a dog. " * 6, "I guess it may be a fish.", "5"]
    answers = [sample(text) for text in texts]
    one_by_one = load_ensemble(config(batch_tokens=1), folder, "cpu")
    together = load_ensemble(config(batch_tokens=10**6), folder, "cpu")
    expected = np.concatenate([one_by_one.members([a]) for a in answers])
    assert expected.shape == (5, 2)
    assert one_by_one.members(answers) == pytest.approx(expected, abs=1e-5)
    assert together.members(answers) == pytest.approx(expected, abs=1e-3)
    assert together.members(answers[::-1])[::-1] == pytest.approx(expected, abs=1e-3)


def test_a_frozen_trunk_stays_and_one_with_adapters_is_merged(folder: Path) -> None:
    meta = json.loads((folder / "ensemble.json").read_text())
    if meta["sharing"] == "none":
        first, second = (AutoModelForSequenceClassification.from_pretrained(folder / m) for m in meta["members"])
        assert not torch.equal(first.model.embed_tokens.weight, second.model.embed_tokens.weight)
        return
    before = load_policy(ModelConfig()).model.model.state_dict()
    (net,) = load_ensemble(config(), folder, "cpu").nets
    after = net.trunk.state_dict()
    assert before.keys() == after.keys()
    same = [torch.equal(before[k], after[k]) for k in before]
    assert all(same) if meta["sharing"] == "frozen" else not all(same)


def test_a_pair_outside_a_members_sample_does_not_move_its_head() -> None:
    net = fresh_net(load_policy(ModelConfig()), 2, 0, "frozen")
    before = net.head.weight.detach().clone()
    rows = [PairItem(f"p{i}", (5, 6, 7, i), (5, 6, 8, i), counts_K=(1.0, 0.0)) for i in range(16)]
    fit(EnsembleConfig(batch_size=8, loss={"centring": 0.0}), net, rows, 0, "cpu")  # type: ignore[arg-type]
    assert not torch.equal(net.head.weight[0], before[0])
    assert torch.equal(net.head.weight[1], before[1])


def test_schedule_free_leaves_averaged_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    schedulefree = pytest.importorskip("schedulefree")
    made: list[Any] = []

    class Recorded(schedulefree.AdamWScheduleFree):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(schedulefree, "AdamWScheduleFree", Recorded)
    optimizer = Registry(disabled=()).config("optimizer", "schedule_free", {"learning_rate": 1e-2})
    net = fresh_net(load_policy(ModelConfig()), 1, 0, "frozen")
    rows = [PairItem(f"p{i}", (5, 6, 7, i), (5, 6, 8, i), counts_K=(1.0,)) for i in range(16)]
    fit(EnsembleConfig(batch_size=4, optimizer=optimizer), net, rows, 0, "cpu")  # type: ignore[arg-type]
    assert [group["train_mode"] for group in made[0].param_groups] == [False]


def test_both_sides_of_a_pair_and_every_head_reach_the_loss() -> None:
    net = fresh_net(load_policy(ModelConfig()), 3, 0, "none").eval()
    rows = [
        PairItem("a", (5, 6, 7), (8, 9), 0.5, (1.0, 2.0, 0.0)),
        PairItem("b", (3, 4), (5, 6, 7, 8), 0.0, (1.0, 1.0, 1.0)),
    ]
    batch = PairModule(net)(rows)
    alone = net([rows[1].rejected_ids])[0]
    assert torch.allclose(batch.rejected_B[3:], alone, atol=1e-5), "padding does not change a score"
    assert batch.margin_B is not None
    assert batch.weights_B is not None
    assert batch.margin_B.tolist() == [0.5] * 3 + [0.0] * 3
    assert batch.weights_B.tolist() == [1, 2, 0, 1, 1, 1]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    policy = load_policy(ModelConfig())
    save_classifier(fresh_net(policy, 1, 3, "none"), policy.tokenizer, folder)
    return folder


def test_a_saved_member_scores_the_same_in_plain_transformers(classifier: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    loaded = SingleReward.load(BradleyTerryConfig(path=str(classifier)), "cpu")
    answers = ["It is a cat.", "I guess it may be a dog, of course!"]
    ids = [list(loaded.encoder.encode(sample(a).prompt.messages, a)) for a in answers]
    with torch.inference_mode():
        logits = model(**tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt")).logits[:, 0]
    assert [s.value for s in loaded.score([sample(a) for a in answers])] == pytest.approx(logits.tolist(), abs=1e-4)


def test_a_conversation_over_the_limit_keeps_its_answer() -> None:
    tokenizer = load_policy(ModelConfig()).tokenizer
    question = ({"role": "user", "content": "What? " * 50},)
    whole, cut = (Encoder(tokenizer, limit).encode(question, "A cat.") for limit in (999, 20))
    assert len(cut) == 20
    assert whole[-20:] == cut
    assert cut[-1] == tokenizer.eos_token_id


def test_a_score_that_is_no_number_is_an_error(classifier: Path) -> None:
    reward = SingleReward.load(BradleyTerryConfig(path=str(classifier)), "cpu")
    reward.net.head.weight.data.fill_(float("nan"))
    (score,) = reward.score([sample("It is a cat.")])
    assert (score.value, score.status) == (None, ScoreStatus.ERROR)


def test_the_cache_knows_what_decides_the_weights() -> None:
    def key(seed: int = 0, train: int = 8, **options: Any) -> str:
        return digest(config(**options), ModelConfig(), pairs(train), pairs(4, 50), seed)

    assert key() == key()
    assert key() == key(aggregate="min", uncertainty_penalty=3.0, gate_quantile=0.5), "these only combine scores"
    assert len({key(), key(seed=1), key(train=9), key(sharing="lora"), key(loss={"centring": 0.5})}) == 5


def test_the_cache_knows_the_tokenizer_and_the_chat_template(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)

    def key() -> str:
        return digest(config(), ModelConfig(path=str(tmp_path)), pairs(8), pairs(4, 50), 0)

    keys = [key(), key()]
    policy.tokenizer.chat_template += "\n"
    policy.tokenizer.save_pretrained(tmp_path)
    keys.append(key())
    policy.tokenizer.add_tokens(["Great question!"])
    policy.tokenizer.save_pretrained(tmp_path)
    keys.append(key())
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 0.1}))
    keys.append(key())
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_a_member_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    meta = json.loads((folder / "ensemble.json").read_text())
    if meta["sharing"] != "none":
        pytest.skip("members are heads of one file")
    (tmp_path / "ensemble.json").write_text(json.dumps(meta))
    with pytest.raises(ModelError, match="lacks its member 'member_0'"):
        load_ensemble(config(), tmp_path, "cpu")


def test_a_classifier_of_several_labels_is_no_reward_model(classifier: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(classifier, num_labels=3, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(classifier).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has 3 labels"):
        SingleReward.load(BradleyTerryConfig(path=str(tmp_path)), "cpu")


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"labels|lack"):
        SingleReward.load(BradleyTerryConfig(path=str(tmp_path)), "cpu")


def test_no_samples_no_scores(folder: Path) -> None:
    reward: EnsembleReward = load_ensemble(config(), folder, "cpu")
    assert reward.score([]) == []


def test_prompts_alone_are_refused_with_the_place_for_pairs(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": "What is {n}?"}}\n' for n in range(40)))
    run = ("train", "--algo", "grpo", "--reward", "ensemble", "--run-dir", tmp_path / "run")
    for data in (file, "pocket/arithmetic"):
        code, err = command(*run, "--dataset", data)
        assert code == 2
        assert "--set reward.pairs=FILE" in err
    code, err = command(*run, "--dataset", file, "--set", "reward.pairs=pocket/assistant", "--dry-run")
    assert code == 0, err
