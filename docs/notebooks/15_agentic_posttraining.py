# %% [markdown]
# # 15 Training on trajectories
#
# *Does a policy use tools better after learning from whole episodes?*
#
# A trajectory is thought, call, result, ..., answer. SFT on it masks what tools returned: the policy did not write
# that. GRPO on episodes gives every token of an episode its advantage, results masked likewise. Left in the loss,
# results cost more than half of the gain.

# %%
from rlhf_core import train
from rlhf_study.notebook import OFFLINE, points, show

sft = train("sft", model="pocket-tools", dataset="lookup", settings=OFFLINE, progress=False)
sft.metrics[["loss", "eval/loss", "train/tokens"]]

# %% [markdown]
# ## The study: GRPO on episodes, and its controls

# %%
show(
    "lookup_grpo",
    {
        "held-out success": lambda f: {
            arm: [(float(step), right) for step, right in row["curve"].items()] for arm, row in f.items()
        },
        "points gained": lambda f: {arm: row["points"] for arm, row in f.items()},
    },
    smoke={"loss": {"sft": points(sft, "loss")}},
    lines=("002:434",),
)
