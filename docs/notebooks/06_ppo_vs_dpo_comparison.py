# %% [markdown]
# # 06 PPO against DPO
#
# *Which of PPO and DPO makes the better assistant from one SFT policy, and how far does each move?*
#
# Both maximise $E[r(x, y)] - \beta\, KL(\pi \Vert \pi_{ref})$. PPO samples answers and climbs the score of a learned
# reward $r$; DPO reads pairs $(y_w, y_l)$ once and never samples. A learned reward can be wrong, so we compare by the
# pocket world's gold score, which neither method sees. Reward per nat of KL says what a method pays for its gain.

# %%
from rlhf_core import train
from rlhf_study.notebook import OFFLINE, ONLINE, points, show


def brief(samples):  # stands in for a reward model
    return [-len(sample.completion.split()) for sample in samples]


dpo = train("dpo", settings={**OFFLINE, "trainer.sample_prompts": 16}, progress=False)
ppo = train("ppo", reward=brief, settings=ONLINE, progress=False)
ppo.metrics[["reward/mean", "kl"]]

# %% [markdown]
# ## The recorded study

# %%
METHODS = ("sft", "ppo", "dpo")
show(
    "pocket_methods",
    {
        "gold score": lambda f: {m: f[m]["gold"] for m in METHODS},
        "KL to the SFT policy": lambda f: {m: f[m]["kl"] for m in METHODS},
        "win rate over it": lambda f: {m: f[m]["gold_win_rate"] for m in METHODS if m != "sft"},
    },
    smoke={"gold score": {"ppo": points(ppo, "eval/gold/value"), "dpo": points(dpo, "eval/gold/value")}},
    lines=("002:97", "002:101", "002:151"),
)
