"""What people type that is no option: another library's name, a setting, a word without dashes."""

from __future__ import annotations

import pytest

from rlhf_core.cli.main import main

TYPED = {
    "train --algo grpo --learning_rate 1e-4": "--set trainer.optimizer.learning_rate=1e-4?",
    "train --learning-rate=1e-4": "--set trainer.optimizer.learning_rate=1e-4?",
    "train --lr 1e-4": "--set trainer.optimizer.learning_rate=1e-4?",
    "train --algo sft --epochs 3": "--set trainer.epochs=3?",
    "train --algo grpo --epochs 3": "--set trainer.epochs=3?",
    "train --algo sft --batch-size 8": "--set trainer.batch_size=8?",
    "train --algo grpo --batch_size 8": "--set trainer.train_batch_size=8?",
    "train --model_name_or_path gpt2": "--model gpt2?",
    "train --model-name gpt2": "--model gpt2?",
    "train --data a.jsonl": "--dataset a.jsonl?",
    "train --output_dir out": "--run-dir DIR",
    "train --run_dir out": "did you mean --run-dir?",
    "train --gpus 2": "did you mean --nproc?",
    "train --algo dpo --beta 0.3": "--set loss.beta=0.3?",
    "train --trainer.steps=5": "--set trainer.steps=5?",
    "train --verifier math": "did you mean --reward verifier --set reward.verifier=math?",
    "train --algo sft --verifier=math": "did you mean --reward verifier --set reward.verifier=math?",
    "train --reward gsm8k --verifier math": "did you mean --set reward.verifier=math?",
    "train --monitor health": "did you mean --set 'monitors=[health]'?",
    "train grpo trainer.steps=3": "--algo grpo?\ndid you mean --set trainer.steps=3?",
    "train actor_rollout_ref.actor.optim.lr=1e-6": "--set trainer.optimizer.learning_rate=1e-6?",
    "train mine.yaml": "--config mine.yaml?",
    "train mine.jsonl": "--dataset mine.jsonl?",
    "sft --model gpt2": "Did you mean: rlhf train --algo sft?",
    "compare a b": "Did you mean: rlhf runs compare?",
    "ui": "rlhf dashboard",
    "chatt": "Did you mean 'chat'?",
    "push runs/x --dry-run": "--to ORG/NAME: Repository on the hub.",
    "generate --model_name_or_path gpt2": "--model gpt2?",
}


@pytest.mark.parametrize("line", TYPED)
def test_the_nearest_thing_is_named(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert TYPED[line] in said
    assert "Did you mean one of" not in said


def test_a_word_that_nobody_knows_gets_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--zzqqy", "1"])
    assert capsys.readouterr().err.strip().endswith("No such option '--zzqqy'.")
