"""What do the tests find? Changes one line of the core or an algorithm at a time and runs the tests that should fail.

    python -m scripts.check.mutants [--only TEXT] [--jobs 2] [--least 0.9]

Every mutation is a row of :data:`MUTANTS`. Each runs in a child process in which the changed text is imported in
place of the file, which itself stays as it is. The tests are run once without a mutation first: they must pass.
Exit code 1 if fewer than ``--least`` of the mutations are found, or a row no longer fits the code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GRPO, PPO = "plugins/rlhf-plugin-grpo/rlhf_plugin_grpo", "plugins/rlhf-plugin-ppo/rlhf_plugin_ppo"
NATIVE = "plugins/rlhf-plugin-native/rlhf_plugin_native"
RL, TRAINING, CONFIG = "rlhf_core/rl", "rlhf_core/training", "rlhf_core/config"
MATHS, LAYERS = "rlhf_core/training/functional.py", "rlhf_core/models/layers"
FUNCTIONS, LOSSES = "tests/functional/test_primitives.py", "plugins/rlhf-plugin-grpo/tests/test_losses.py"
FORMULAS, ADVANTAGES = "tests/engine/test_kl_and_reductions.py", "plugins/rlhf-plugin-grpo/tests/test_advantages.py"
IMPORTANCE, SCHEDULE = "tests/trainers/test_importance.py", "tests/trainers/test_buffer.py"
ONLINE = "tests/trainers/test_online.py -k not_charged or without_scores or truncated"
AHEAD = "tests/trainers/test_rollouts_ahead.py -k hooks_hear or thrown_away"
GROUPS, ADAPTIVE = "tests/trainers/test_dynamic_sampling.py", "tests/trainers/test_adaptive.py"
LEARNER, MICRO = "tests/trainers/test_learner.py", "tests/trainers/test_micro_batches.py"
TRL, PPO_MATHS = "plugins/rlhf-plugin-grpo/tests/test_trl_parity.py", "plugins/rlhf-plugin-ppo/tests/test_maths.py"
FORWARD = "tests/engine/test_forward.py tests/engine/test_kernels.py"
QUANTILE = "tests/trainers/test_algorithms.py -k quantile_is_that or overlong or missing"
SAMPLING, SCORES = "tests/engine/test_sampling.py", "tests/trainers/test_rewards.py"
ORDER, SETTINGS = "tests/data/test_prompt_order.py", "tests/config/test_precedence.py"
RECIPES, CHECKPOINTS = "tests/cli/test_config.py", "tests/resume/test_damaged_files.py"


class Mutant(NamedTuple):
    """One change and the tests that should find it."""

    file: str
    old: str
    new: str
    tests: str
    """Arguments of pytest; what follows ``-k`` is one expression."""


MUTANTS = (
    # KL estimators, importance weights, reductions and masks
    Mutant(MATHS, "return -r", "return r", FORMULAS),
    Mutant(MATHS, "0.5 * r**2", "r**2", FORMULAS),
    Mutant(MATHS, "(max=LOG_LIMIT)) - r", "(max=LOG_LIMIT)) + r", FORMULAS),
    Mutant(MATHS, "weight * (now - ref)", "weight * (ref - now)", FORMULAS),
    Mutant(MATHS, "value = weight * kl_value", "value = kl_value", FORMULAS),
    Mutant(MATHS, "(ratios <= cap) & ", "", IMPORTANCE),
    Mutant(MATHS, "torch.where(mask_BT, gap", "torch.where(mask_BT | True, gap", IMPORTANCE),
    Mutant(MATHS, "mean_ratio**2 /", "mean_ratio /", IMPORTANCE),
    Mutant(MATHS, "mask_BT.bool(), values_BT", "mask_BT.bool() | True, values_BT", FORMULAS),
    Mutant(MATHS, "=-1).sum() / denom", "=-1).mean() / denom", FORMULAS),
    Mutant(MATHS, ").clamp(min=1)", ")", FUNCTIONS),
    # Losses and their terms
    Mutant(f"{GRPO}/functional/surrogate.py", "torch.minimum(free", "torch.maximum(free", LOSSES),
    Mutant(f"{GRPO}/functional/surrogate.py", "clamp(1 - low, 1 + high)", "clamp(1 - high, 1 + low)", TRL),
    Mutant(f"{GRPO}/functional/preference.py", "rejected_B) - (ref", "rejected_B) + (ref", FUNCTIONS),
    Mutant(f"{GRPO}/loss.py", "config.clip_range_high or ", "", TRL),
    Mutant(f"{GRPO}/loss.py", "torch.minimum(loss_BT", "torch.maximum(loss_BT", LOSSES),
    Mutant(
        f"{GRPO}/loss.py", "kept_BT = torch.where(batch.mask_BT", "kept_BT = torch.where(batch.mask_BT | True", LOSSES
    ),
    Mutant(f"{RL}/update.py", "loss_BT - self.entropy", "loss_BT + self.entropy", TRL),
    Mutant(f"{RL}/update.py", "batch.behaviour_logprobs_BT if self.stale else ", "", FORMULAS),
    Mutant(f"{RL}/update.py", "loss_BT * weights, metrics", "loss_BT, metrics", IMPORTANCE),
    Mutant(f"{RL}/update.py", "1 - quantile", "quantile", QUANTILE),
    Mutant(f"{RL}/update.py", "e[i.mask_T] for", "e for", QUANTILE),
    # Advantages and scores
    Mutant(f"{GRPO}/advantage.py", "values_N.std(ddof=1)", "values_N.std(ddof=0)", ADVANTAGES),
    Mutant(f"{GRPO}/advantage.py", "centred_G / (std + epsilon)", "centred_G / max(std, epsilon)", ADVANTAGES),
    Mutant(f"{GRPO}/advantage.py", " if baseline is None else baseline", "", ADVANTAGES),
    Mutant(f"{GRPO}/advantage.py", "count / (count - 1)", "count / (count + 1)", ADVANTAGES),
    Mutant(f"{GRPO}/advantage.py", "if score.ok:", "if score.value is not None:", SCORES),
    Mutant(f"{GRPO}/advantage.py", "(rewards - rewards.mean()) /", "rewards /", ADVANTAGES),
    Mutant(f"{PPO}/maths.py", "gamma * gae_lambda * later", "gamma * later", PPO_MATHS),
    Mutant(f"{RL}/advantages.py", "score.value - settings.coef", "score.value + settings.coef", FORMULAS),
    Mutant(f"{RL}/advantages.py", "if rollout.mask_T is None else", "if rollout.mask_T is not False else", ONLINE),
    Mutant(f"{RL}/advantages.py", "(max_tokens - cache)) / cache", "max_tokens) / cache", QUANTILE),
    Mutant(f"{RL}/advantages.py", "< min(2, size[g])", "< 1", SCORES),
    Mutant(f"{RL}/advantages.py", "trained.append(None)", "trained.append(sample)", ONLINE),
    Mutant(f"{TRAINING}/generation.py", " and s.status is not ScoreStatus.GATED", "", SCORES),
    Mutant(f"{TRAINING}/generation.py", "len(bad) > self", "len(bad) >= self", SCORES),
    Mutant(f"{TRAINING}/generation.py", "rollout.score is not None and", "False and", SCORES),
    Mutant(
        "rlhf_core/types/rollouts.py",
        'value`` may be used."""\n        return self.status is ScoreStatus.OK',
        'value`` may be used."""\n        return self.value is not None',
        SCORES,
    ),
    # Which batch is sampled when, and what it holds
    Mutant(f"{RL}/buffered_source.py", "entry.version > self", "entry.version >= self", SCHEDULE),
    Mutant(f"{RL}/buffered_source.py", "and reads < steps_left", "and reads <= steps_left", SCHEDULE),
    Mutant(f"{RL}/buffered_source.py", "if entry.reads == 1", "if entry.reads", AHEAD),
    Mutant(f"{RL}/buffered_source.py", "self.prompts.put_back(groups)", "pass", AHEAD),
    Mutant(f"{RL}/sources.py", "*self.returned]", "*self.returned][::-1]", SCHEDULE),
    Mutant(f"{RL}/sources.py", "count and prompt.id not in first", "count", SCHEDULE),
    Mutant(f"{RL}/dynamic_collector.py", "take(size - len(trained))", "take(size)", GROUPS),
    Mutant(f"{RL}/dynamic_collector.py", "settings.k_success or ", "settings.k_success and ", ADAPTIVE),
    Mutant(f"{TRAINING}/rollout_batch.py", "min(rank, count % world_size)", "0", SCHEDULE),
    Mutant(f"{TRAINING}/rollout_batch.py", "g.group_size for g in groups[:", "1 for g in groups[:", SCHEDULE),
    Mutant(f"{TRAINING}/rollout_batch.py", "if mask_truncated and", "if not mask_truncated and", ONLINE),
    Mutant("rlhf_core/data/order.py", '*state["put_off"], ', "", ORDER),
    # Updates
    Mutant(f"{TRAINING}/learner.py", "(n + 1) / settings", "n / settings", LEARNER),
    Mutant(f"{TRAINING}/learner.py", "total - settings.warmup_steps", "total", LEARNER),
    Mutant(f"{TRAINING}/learner.py", " * self._constant_length", "", LEARNER),
    Mutant(f"{TRAINING}/learner.py", "if k in COUNTS else s", "if k not in COUNTS else s", LEARNER),
    Mutant(f"{TRAINING}/micro_batches.py", "(-costs[i], i)", "(costs[i], i)", MICRO),
    Mutant(f"{TRAINING}/micro_batches.py", "<= budget for part", "<= 2 * budget for part", MICRO),
    Mutant(f"{RL}/update.py", "sum(n > 0 for n in tokens)", "len(tokens)", LEARNER),
    Mutant(f"{TRAINING}/weight_sync.py", "STANDARD_ERRORS * self.error", "0", "tests/trainers/test_engine_drift.py"),
    Mutant(f"{LAYERS}/packing.py", "prompt_spans[key][1] - 1", "prompt_spans[key][0]", FORWARD),
    Mutant(f"{LAYERS}/packing.py", "lay(fed, len(prompt),", "lay(fed, 0,", FORWARD),
    Mutant(f"{LAYERS}/segments.py", ".tril_(before)", ".tril_(before + 1)", FORWARD),
    Mutant(f"{NATIVE}/sampling.py", "before_BV >= params", "before_BV + ranked_BV >= params", SAMPLING),
    Mutant(f"{NATIVE}/sampling.py", "Philox(key=seed)", "Philox(key=0)", SAMPLING),
    Mutant(f"{NATIVE}/sampling.py", "if open_BV is not scaled_BV and", "if False and", SAMPLING),
    # Checkpoints and configuration
    Mutant("rlhf_core/runs/checkpoint.py", "[: -self.keep]", "[: -self.keep - 1]", CHECKPOINTS),
    Mutant("rlhf_core/runs/checkpoint.py", "if not damage:", "if True:", CHECKPOINTS),
    Mutant(f"{CONFIG}/recipe.py", "if plain(upper) is None", "if upper is None", SETTINGS),
    Mutant(f"{CONFIG}/recipe.py", "(lower, upper) if same", "(upper, lower) if same", SETTINGS),
    Mutant(f"{CONFIG}/recipe.py", '(f"{name}+{reward}", name)', '(name, f"{name}+{reward}")', RECIPES),
)


def main() -> int:
    """Print what was found of every mutation; exit code 1 if it is too little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations whose file or tests hold this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.9, help="share that has to be found")
    args = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if args.only in f"{mutant.file} {mutant.tests}"]
    if stale := [mutant for mutant in mutants if (ROOT / mutant.file).read_text().count(mutant.old) != 1]:
        print("not exactly once in the file:", *(f"{m.file}: {m.old}" for m in stale), sep="\n  ")
        return 1
    load_libraries()
    plain = [Mutant("", "", "", tests) for tests in dict.fromkeys(mutant.tests for mutant in mutants)]
    if broken := [mutant.tests for mutant, code in run(plain, args.jobs) if code]:
        print("fail without a mutation:", *broken, sep="\n  ")
        return 1
    found = 0
    for mutant, code in run(mutants, args.jobs):
        found += code == 1
        word = {0: "NOT FOUND", 1: "found"}.get(code, f"pytest ended with {code}")
        print(f"{word}: {mutant.file}: {mutant.old.strip()} -> {mutant.new.strip()}", flush=True)
    print(f"{found} of {len(mutants)} mutations found ({found / len(mutants):.0%})")
    return int(found < args.least * len(mutants))


def load_libraries() -> None:
    """Import once, for all children, what takes longest."""
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", RLHF_FORK_SERVER="0")
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers.modeling_utils  # noqa: F401


def run(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, int]]:
    """Each mutation in its own child process; the exit codes of pytest."""
    waiting, running = list(mutants), dict[int, Mutant]()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop(0)
            pid = os.fork()
            if not pid:
                test(mutant)
            running[pid] = mutant
        pid, status = os.wait()
        yield running.pop(pid), os.waitstatus_to_exitcode(status)


def test(mutant: Mutant) -> None:
    """Run the tests of a mutation in this process, and leave it."""
    import pytest

    os.chdir(ROOT)
    log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if mutant.file:
        import_changed(ROOT / mutant.file, mutant)
    files, _, expression = mutant.tests.partition(" -k ")
    chosen = ["-k", expression] if expression else []
    options = ["-x", "-m", "not slow and not long", "-p", "no:cacheprovider", "-o", "timeout=120"]
    os._exit(pytest.main([*files.split(), *chosen, *options]))


def import_changed(file: Path, mutant: Mutant) -> None:
    """Import the changed text in place of the file."""
    text, get_code = file.read_text().replace(mutant.old, mutant.new), SourceFileLoader.get_code

    def changed(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if Path(self.path) == file:
            return compile(text, self.path, "exec", dont_inherit=True)
        return get_code(self, fullname)

    SourceFileLoader.get_code = changed


if __name__ == "__main__":
    sys.exit(main())
