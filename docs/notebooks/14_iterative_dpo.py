# %% [markdown]
# # 14 Iterative DPO
#
# *Which pairs should each round learn from: its own, the last two rounds', or all?*
#
# Round $i$ samples from $\pi_i$, a reward model ranks, DPO updates on the best and worst answer. Own pairs are few
# but on policy; old pairs are many, but about answers that $\pi_i$ no longer writes. Buffers are compared at equal
# updates.

# %%
from rlhf_core import train
from rlhf_study.notebook import curves, points, show


def brief(samples):  # stands in for a reward model
    return [-len(sample.completion.split()) for sample in samples]


small = {"seed": 0, "dataset.limit": 400, "trainer.steps": 2, "trainer.rollout_batch_size": 32, "trainer.updates": 2}
small |= {"trainer.eval_samples": 16, "trainer.gold_samples": 0, "trainer.sampling.max_tokens": 24}
runs = {
    buffer: train("iterative_dpo", reward=brief, settings={**small, "trainer.buffer": buffer}, progress=False)
    for buffer in ("current", "full")
}
runs["full"].metrics.filter(like="eval/reward")

# %% [markdown]
# ## The study: three buffers

# %%
show(
    "iterative_buffers",
    {"gold score": curves("eval/gold/value"), "reward": curves("eval/reward/mean"), "KL": curves("kl")},
    smoke={"reward": {buffer: points(run, "eval/reward/mean") for buffer, run in runs.items()}},
    lines=("002:382",),
)
