# %% [markdown]
# # 08 An ensemble of reward models
#
# *Does a penalty on disagreement prevent reward hacking, and how large must it be?*
#
# $K$ reward models with different seeds agree where data is and differ elsewhere. The reward is $\bar r(x, y) -
# \lambda \, \mathrm{std}_k\, r_k(x, y)$. Errors that all members share, such as a liking for length that people have
# too, leave the spread small: the penalty cannot see them.

# %%
from rlhf_core import train
from rlhf_study.notebook import ONLINE, points, show

small = {"reward.members": 2, "reward.max_pairs": 32, "reward.heldout_pairs": 16}
grpo = train("grpo", reward="ensemble", settings={**ONLINE, **small}, progress=False)
grpo.metrics[["reward/mean", "reward/part/mean", "reward/part/std", "kl"]]

# %% [markdown]
# ## The recorded study: a sweep of lambda

# %%
show(
    "lambda_sweep",
    {
        "gold score at its best": lambda f: {arm: f[arm]["gold_best"] for arm in f},
        "gold score at the end": lambda f: {arm: f[arm]["gold_end"] for arm in f},
    },
    smoke={"reward": {"ensemble": points(grpo, "reward/mean")}, "spread": {"std": points(grpo, "reward/part/std")}},
)
