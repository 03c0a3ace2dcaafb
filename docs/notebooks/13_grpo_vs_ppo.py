# %% [markdown]
# # 13 GRPO against PPO
#
# *What is gained and lost without a critic?*
#
# GRPO samples $G$ answers to a prompt and takes $A_i = (r_i - \bar r) / \mathrm{std}(r)$ in place of a critic's
# advantage; clipping is PPO's. It saves the critic's weights, gradients and moments. A group whose rewards are equal
# has no gradient, and every token of an answer gets the same credit.

# %%
from rlhf_core import train
from rlhf_study.notebook import ONLINE, curves, points, show

settings = {**ONLINE, "trainer.group_size": 4}
runs = {
    algo: train(algo, reward="verifier", dataset="pocket/arithmetic", settings=settings, progress=False)
    for algo in ("ppo", "grpo")
}
runs["grpo"].metrics[["reward/mean", "kl", "constant_groups", "time/update"]]

# %% [markdown]
# ## The study: the same prompts, answers and updates

# %%
show(
    "ppo_vs_grpo",
    {"gold score": curves("eval/gold/value"), "reward": curves("eval/reward/mean"), "KL": curves("kl")},
    smoke={"reward": {algo: points(run, "reward/mean") for algo, run in runs.items()}},
    lines=("002:112",),
)
