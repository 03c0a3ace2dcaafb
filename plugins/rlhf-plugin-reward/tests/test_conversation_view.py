"""What a reward model sees of a conversation is saved with it, and scoring asks for the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.data import DatasetError, PreferencePair, Prompt
from rlhf_core.distributed import LocalStrategy
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import FinishReason
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.config import BradleyTerryConfig, EnsembleConfig
from rlhf_plugin_reward.encoding import Encoder, View
from rlhf_plugin_reward.ensemble import train_ensemble
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairItem, PairModule, encode_pairs
from rlhf_plugin_reward.reward import SingleReward, by_beginning, by_length, keep_features, load_ensemble, score_ids

TALK = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is Ada's pet?"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "What is Bob's pet?"},
)
PAIRS = [
    PreferencePair(f"p/{i}", (*TALK[1:-1], {"role": "user", "content": f"What is 2 + {i}?"}), "5", "Sure! 5")
    for i in range(16)
]


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy(ModelConfig())


def test_the_last_turn_keeps_the_system_turn(policy: Any) -> None:
    last, whole = (Encoder(policy.tokenizer, 999, View(turns)) for turns in ("last", "all"))
    assert last.encode(TALK, "A dog.") == whole.encode((TALK[0], TALK[-1]), "A dog.")
    assert last.encode(TALK, "A dog.") != whole.encode(TALK, "A dog.")


def test_the_side_that_is_cut(policy: Any) -> None:
    whole = Encoder(policy.tokenizer, 999).encode(TALK, "A dog.")
    left, right = (Encoder(policy.tokenizer, 12, View("all", side)) for side in ("left", "right"))
    assert left.encode(TALK, "A dog.") == whole[-12:]
    assert right.encode(TALK, "A dog.") == whole[:12]
    counts: Counter[str] = Counter()
    encode_pairs([PreferencePair("a", TALK, "A dog.", "No.")], right, counts)
    encode_pairs([PreferencePair("a", TALK, "A dog.", "No.")], left, counts)
    assert counts == {"pairs_answer_cut": 1, "pairs_prompt_cut": 1}


def test_a_model_trained_on_last_turns_scores_last_turns(command: Callable[..., Any], tmp_path: Path) -> None:
    rows = "".join(
        json.dumps({"id": p.id, "prompt": list(p.prompt), "chosen": p.chosen, "rejected": p.rejected}) + "\n"
        for p in PAIRS
    )
    (tmp_path / "pairs.jsonl").write_text(rows)
    code, err = command(
        "train",
        "--algo",
        "reward_model",
        "--dataset",
        tmp_path / "pairs.jsonl",
        "--run-dir",
        tmp_path / "run",
        "--set",
        "trainer.turns=last",
        "--set",
        "trainer.max_steps=1",
        "--set",
        "trainer.eval_samples=0",
        "--set",
        "threads=1",
        "--set",
        "trainer.truncation=right",
        "--set",
        "trainer.max_length=40",
    )
    assert code == 0, err
    final = str(tmp_path / "run" / "final")
    reward = SingleReward.load(BradleyTerryConfig(path=final), "cpu")
    assert reward.encoder.view == View("last", "right", 40)
    assert reward.encoder.max_length == 40
    assert SingleReward.load(BradleyTerryConfig(path=final, max_length=30), "cpu").encoder.max_length == 30
    samples = [Sample(Prompt("q", talk), "A dog.", FinishReason.EOS) for talk in (TALK, (TALK[0], TALK[-1]))]
    first, second = (s.value for s in reward.score(samples))
    assert first == pytest.approx(second, abs=1e-5)
    whole = SingleReward.load(BradleyTerryConfig(path=final, turns="all"), "cpu").score(samples[:1])[0].value
    assert whole != pytest.approx(first, abs=1e-3)


@pytest.mark.slow
def test_an_ensemble_knows_its_view_and_its_tokenizer(policy: Any, tmp_path: Path) -> None:
    config = EnsembleConfig(members=2, batch_size=8, turns="last", max_length=48)
    train_ensemble(config, ModelConfig(), PAIRS, PAIRS[:4], 0, tmp_path / "e", print, LocalStrategy())
    assert load_ensemble(EnsembleConfig(), tmp_path / "e", "cpu").encoder.view.turns == "last"
    assert load_ensemble(EnsembleConfig(turns="all"), tmp_path / "e", "cpu").encoder.view.turns == "all"
    assert load_ensemble(EnsembleConfig(), tmp_path / "e", "cpu").encoder.max_length == 48
    assert load_ensemble(EnsembleConfig(max_length=20), tmp_path / "e", "cpu").encoder.max_length == 20
    other_policy = load_policy(ModelConfig())
    other_policy.tokenizer.add_tokens(["Great question!"])
    other_policy.model.resize_token_embeddings(len(other_policy.tokenizer))
    save_classifier(fresh_net(other_policy, 1, 0, "none"), other_policy.tokenizer, tmp_path / "e" / "member_1")
    for manifest in (tmp_path / "e").rglob("manifest.json"):  # else the folder is damaged
        manifest.unlink()
    with pytest.raises(ModelError, match=r"'member_1' .* has another tokenizer"):
        load_ensemble(EnsembleConfig(), tmp_path / "e", "cpu")


ANSWERED = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if loop.last and m['role'] == 'assistant' %}<think></think>{% endif %}"
    "{{ m['content'] | trim }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Writes an answer that is there otherwise than one that is asked for, as templates of reasoning models do."""


def elsewhere(policy: Any, folder: Path) -> str:
    """A classifier that says nothing about its training."""
    save_classifier(fresh_net(policy, 1, 0, "none"), policy.tokenizer, folder)
    (folder / "reward.json").unlink()
    for manifest in folder.rglob("manifest.json"):
        manifest.unlink()
    return str(folder)


def test_a_model_from_elsewhere_gets_the_text_that_its_template_writes(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    policy.tokenizer.chat_template = ANSWERED
    reward = SingleReward.load(BradleyTerryConfig(path=elsewhere(policy, tmp_path)), "cpu")
    whole = [*TALK, {"role": "assistant", "content": " A dog. "}]
    expected = policy.tokenizer.apply_chat_template(whole, tokenize=True, return_dict=False)
    assert list(reward.encoder.encode(TALK, " A dog. ")) == list(expected)
    assert reward.encoder.max_length == policy.context


def test_a_model_from_elsewhere_without_a_template_is_refused(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    policy.tokenizer.chat_template = None
    folder = elsewhere(policy, tmp_path)
    with pytest.raises(ModelError, match="has no chat template"):
        SingleReward.load(BradleyTerryConfig(path=folder), "cpu")
    named = SingleReward.load(BradleyTerryConfig(path=folder, chat_template="plain"), "cpu")
    text = named.encoder.formatter.tokenizer.decode(named.encoder.encode(TALK, "A dog."))
    assert "User:" in text
    assert "Assistant:\nA dog." in text


def test_a_tokenizer_of_another_model_is_refused(policy: Any, tmp_path: Path) -> None:
    save_classifier(fresh_net(policy, 1, 0, "none"), policy.tokenizer, tmp_path)
    other_tokenizer = load_policy(ModelConfig()).tokenizer
    other_tokenizer.add_tokens([f"token number {i}" for i in range(999)])
    other_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is not its model's"):
        SingleReward.load(BradleyTerryConfig(path=str(tmp_path)), "cpu")


def test_no_pad_token_is_needed(policy: Any, tmp_path: Path) -> None:
    save_classifier(fresh_net(policy, 1, 0, "none"), policy.tokenizer, tmp_path)
    expected = SingleReward.load(BradleyTerryConfig(path=str(tmp_path)), "cpu")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "config.json"):
        if (file := tmp_path / name).is_file():
            file.write_text(
                json.dumps(
                    {k: v for k, v in json.loads(file.read_text()).items() if k not in ("pad_token", "pad_token_id")}
                )
            )
    without_pad = SingleReward.load(BradleyTerryConfig(path=str(tmp_path)), "cpu")
    samples = [Sample(Prompt("q", TALK), text, FinishReason.EOS) for text in ("A dog.", "A dog. " * 9)]
    assert [s.value for s in without_pad.score(samples)] == pytest.approx(
        [s.value for s in expected.score(samples)], abs=1e-5
    )


def test_a_frozen_trunk_sees_every_conversation_once(policy: Any) -> None:
    net, batch_sizes = fresh_net(policy, 2, 0, "frozen"), []
    net.trunk.embed_tokens.register_forward_hook(lambda module, args, out: batch_sizes.append(args[0].numel()))
    items = [PairItem(str(i), (5, 6, 7, i + 8), (5, 6, 9, i + 8, 4)) for i in range(6)]
    first = PairModule(net)(items).chosen_B
    calls = len(batch_sizes)
    again = PairModule(net)(items[::-1]).chosen_B.reshape(-1, 2).flip(0).flatten()
    assert len(batch_sizes) == calls > 0
    assert torch.allclose(first, again, atol=1e-6)
    assert again.requires_grad, "the head still learns"
    plain = fresh_net(policy, 2, 0, "none")
    assert torch.allclose(first, PairModule(plain)(items).chosen_B, atol=1e-5)


def test_features_are_the_same_bits_in_whatever_batch_they_are_asked_for(policy: Any, monkeypatch: Any) -> None:
    rows = [tuple((7 * i + j) % 200 + 3 for j in range(4 + i % 9)) for i in range(30)]

    def features(order: list[int]) -> torch.Tensor:
        net = fresh_net(policy, 1, 0, "frozen")
        keep_features(net, rows[:20], LocalStrategy("cpu"))
        return torch.cat([net.features([rows[i] for i in order[n : n + 7]]) for n in range(0, 30, 7)])[
            torch.tensor(order).argsort()
        ]

    order = torch.randperm(30, generator=torch.Generator().manual_seed(0)).tolist()
    first = features(list(range(30)))
    assert torch.equal(first, features(order))
    monkeypatch.setattr("rlhf_plugin_reward.net.MOST_CACHED", 20)
    assert torch.equal(first, features(order)), "what there is no room for too"


class DividedMoments(LocalStrategy):
    """Weights are whole, as in ZeRO's stages 1 and 2."""

    sharded = True


class DividedWeights(DividedMoments):
    """As in stage 3, of one rank."""

    def prepare_frozen(self, module: torch.nn.Module) -> torch.nn.Module:
        return module

    def sharded_forward(self, module: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
        return nullcontext(module)


def test_more_conversations_than_are_kept_are_refused_where_weights_are_divided(policy: Any, monkeypatch: Any) -> None:
    rows = [(3, 4, 5, 6 + i) for i in range(5)]
    monkeypatch.setattr("rlhf_plugin_reward.reward.MOST_CACHED", 4)
    net = fresh_net(policy, 1, 0, "frozen")
    keep_features(net, rows, DividedMoments("cpu"))
    assert len(net.cached_features) == 4
    with pytest.raises(DatasetError, match="keeps features of 4 conversations, and there are 5"):
        keep_features(fresh_net(policy, 1, 0, "frozen"), rows, DividedWeights("cpu"))


def test_batches_hold_everything_once_within_their_tokens() -> None:
    ids = [tuple(range(n % 7, n % 7 + 3 + n % 5)) for n in range(40)]
    for batches, size in (
        (by_beginning(ids, 30), lambda b: sum(len(ids[i]) for i in b)),
        (by_length(ids, 30), lambda b: len(b) * max(len(ids[i]) for i in b)),
    ):
        index_batches = list(batches)
        assert sorted(i for b in index_batches for i in b) == list(range(40))
        assert all(size(b) <= 30 for b in index_batches)
    assert list(by_beginning([(1,) * 9, (2,) * 9], 1)) == [[0], [1]], "too long for a batch is a batch"


def test_scores_with_and_without_padding_are_the_same(policy: Any) -> None:
    net = fresh_net(policy, 3, 1, "none").eval()
    ids = [tuple((7 * i + j) % 200 + 3 for j in range(4 + i % 9)) for i in range(30)]
    assert net.can_pack()
    packed = score_ids(net, ids, 64)
    net.without_padding = False
    assert packed == pytest.approx(score_ids(net, ids, 64), abs=1e-4)


@pytest.mark.parametrize("without_padding", [False, True])
def test_a_forward_on_a_cpu_is_bounded(policy: Any, monkeypatch: pytest.MonkeyPatch, without_padding: bool) -> None:
    monkeypatch.setattr("rlhf_plugin_reward.reward.ROW_TOKENS", 40)
    monkeypatch.setattr("rlhf_plugin_reward.reward.PADDED_TOKENS", 20)
    net = fresh_net(policy, 1, 1, "none").eval()
    net.without_padding = without_padding
    sizes: list[int] = []
    net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    score_ids(net, [(3, 4, 5, 6 + i) for i in range(20)], 16384)
    assert sizes == ([10, 10] if without_padding else [5] * 4)
