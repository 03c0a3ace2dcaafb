"""The reward ``prm``: parts per step, exact scores, statuses, and folders that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_core.data import Prompt
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_prm.net import StepEncoder
from rlhf_plugin_prm.reward import StepReward, aggregate
from rlhf_plugin_prm.reward_config import PrmRewardConfig
from rlhf_plugin_prm.steps import split_steps
from rlhf_plugin_prm.store import save_model
from rlhf_plugin_reward.net import fresh_net
from rlhf_testing import check_reward, make_context

PROMPT = Prompt("a", ({"role": "user", "content": "What is 7 + 5 - 3?"},))
TEXT = "7 + 5 = 12\n12 - 3 = 9\nThe answer is 9."


def load(path: Path, **settings: object) -> StepReward:
    return PrmRewardConfig.model_validate({"path": str(path), **settings}).build(make_context())


def test_it_conforms(prm: Path) -> None:
    check_reward(PrmRewardConfig(path=str(prm)))


def test_aggregation() -> None:
    right = np.array([0.9, 0.2, 0.5])
    values = {how: aggregate(right, how) for how in ("min", "mean", "product", "last")}
    assert values == pytest.approx({"min": 0.2, "mean": 1.6 / 3, "product": 0.09, "last": 0.5})


@torch.inference_mode()
def test_each_step_has_the_score_of_the_text_up_to_its_end(prm: Path) -> None:
    """A classifier of transformers, given the conversation up to a step, gives that step's logit."""
    score = load(prm).score([Sample(PROMPT, TEXT), Sample(PROMPT, "x " * 60)])[0]
    model = AutoModelForSequenceClassification.from_pretrained(prm).eval()
    tokenizer = AutoTokenizer.from_pretrained(prm)
    start = tokenizer.apply_chat_template(
        [dict(m) for m in PROMPT.messages], add_generation_prompt=True, tokenize=False
    )
    for n, step in enumerate(split_steps(TEXT, "newline"), 1):
        ids = tokenizer(start + TEXT[: step.end], return_tensors="pt", add_special_tokens=False).input_ids
        expected = float(torch.sigmoid(model(input_ids=ids).logits[0, 0]))
        assert score.parts[f"step_{n}"] == pytest.approx(expected, abs=1e-5)
        assert score.parts[f"end_{n}"] == step.end
    steps = [score.parts[f"step_{n}"] for n in (1, 2, 3)]
    assert score.value == min(steps)
    assert len(set(steps)) == 3


def test_an_outcome_model_reads_the_end_and_every_step_if_asked(prm: Path, orm: Path) -> None:
    (process,) = load(prm, aggregate="last").score([Sample(PROMPT, TEXT)])
    (outcome,) = load(orm).score([Sample(PROMPT, TEXT)])
    assert outcome.value == pytest.approx(process.value, abs=1e-6)
    assert set(outcome.parts) == {"step_1", "end_1"}
    (every,) = load(orm, read="steps").score([Sample(PROMPT, TEXT)])
    assert dict(every.parts) == pytest.approx(dict(process.parts), abs=1e-6)


def test_what_cannot_be_scored_has_a_status(prm: Path) -> None:
    scores = load(prm, max_length=40).score([Sample(PROMPT, t) for t in ("", " \n ", "9 " * 60, TEXT)])
    assert [s.status for s in scores] == [ScoreStatus.ERROR] * 3 + [ScoreStatus.OK]
    assert "blank" in scores[0].detail
    assert "max_length is 40" in scores[2].detail
    broken = load(prm)
    torch.nn.init.constant_(broken.net.head.weight, float("nan"))
    assert broken.score([Sample(PROMPT, TEXT)])[0].status is ScoreStatus.ERROR


def test_a_long_prompt_loses_its_beginning(prm: Path) -> None:
    encoder = load(prm, max_length=40).encoder
    long = ({"role": "user", "content": "1 + " * 60 + "1?"},)
    ids, places, cut = encoder.encode(long, TEXT, split_steps(TEXT, "newline"))
    assert cut
    assert len(ids) == 40
    assert encoder.tokenizer.decode(ids).endswith(TEXT)
    assert [encoder.tokenizer.decode(ids[: p + 1])[-3:] for p in places] == [" 12", "= 9", " 9."]


def test_a_model_without_a_pad_token(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    policy.tokenizer.pad_token = None
    policy.tokenizer.eos_token = None
    folder = tmp_path / "prm"
    save_model(fresh_net(policy, 1, 0, "none"), policy.tokenizer, folder, "steps", "newline")
    assert AutoTokenizer.from_pretrained(folder).pad_token_id is None
    check_reward(PrmRewardConfig(path=str(folder)))


def test_another_tokenizer_is_refused(prm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "prm"
    shutil.copytree(prm, folder)
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["merges"].pop()
    file.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="is not the one this model was trained with"):
        load(folder)


def test_a_tokenizer_that_knows_no_characters_is_refused() -> None:
    from transformers import ByT5Tokenizer

    with pytest.raises(ModelError, match="does not say which characters a token holds"):
        StepEncoder(ByT5Tokenizer(), 100)


def test_a_folder_without_a_model_of_steps_is_refused_before_the_run(
    command: Callable[..., tuple[int, str]], prm: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bt"
    shutil.copytree(prm, folder)
    (folder / "steps.json").unlink()
    options = ["train", "--algo", "grpo", "--reward", "prm", "--dataset", "chain_steps", "--run-dir", tmp_path / "run"]
    code, err = command(*options, "--set", f"reward.path={folder}")
    assert code == 2
    assert "steps.json is not there" in err
    assert "--reward bradley_terry" in err
    (folder / "steps.json").write_text('{"target": "steps"}')
    code, err = command(*options, "--set", f"reward.path={folder}")
    assert code == 2
    assert "does not say what the model was taught" in err
