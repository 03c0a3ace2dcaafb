# %% [markdown]
# # 01 Data exploration
#
# *What is in preference data, and what of it is not quality?*
#
# A row is a prompt $x$ with a chosen answer $y_w$ and a rejected one $y_l$; in a conversation $x$ holds all earlier
# turns. Whatever differs between the sides can be learned: if chosen answers are longer, a reward model learns
# length. So look at forms, duplicates and lengths of both sides before training, and ask whether the last turn
# suffices.

# %%
from collections import Counter

from rlhf_plugin_pocket import load_pairs
from rlhf_study.notebook import draw, rlhf, show

report = rlhf("data check pocket/assistant --algo reward_model --json")
print({key: report[key] for key in ("forms", "train", "heldout")})
print({key: report["lengths"]["train"][key] for key in ("p50", "p95", "max", "beyond")}, "tokens")

pairs = load_pairs("train")
words = {side: Counter(len(pair[side].split()) for pair in pairs) for side in ("chosen", "rejected")}
lengths = {side: sorted(counts.items()) for side, counts in words.items()}
draw({"answers by number of words": [lengths]}, x="words")

# %% [markdown]
# ## The recorded study: the whole conversation, or its last turn

# %%
show(
    "multi_turn",
    {
        "held-out accuracy": lambda f: {seen: f[seen]["accuracy"][0] for seen in f},
        "tokens": lambda f: {seen: f[seen]["tokens"] for seen in f},
    },
    smoke={"answers by number of words": lengths},
)
