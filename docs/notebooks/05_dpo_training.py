# %% [markdown]
# # 05 DPO
#
# *Can preferences be learned without a reward model and without sampling?*
#
# The optimum of $E[r] - \beta KL(\pi \Vert \pi_{ref})$ is $\pi^*(y|x) \propto \pi_{ref}(y|x)\, e^{r(x, y) / \beta}$,
# hence $r = \beta \log \frac{\pi^*}{\pi_{ref}} + \beta \log Z(x)$. In a Bradley-Terry difference $Z$ cancels: $L =
# -\log \sigma(\beta \log \frac{\pi(y_w)}{\pi_{ref}(y_w)} - \beta \log \frac{\pi(y_l)}{\pi_{ref}(y_l)})$. The policy
# is its own reward model. DPO only moves probability among texts like those of its pairs.

# %%
from rlhf_core import train
from rlhf_study.notebook import OFFLINE, points, show

settings = {**OFFLINE, "trainer.max_steps": 8, "trainer.sample_prompts": 0}
dpo = train("dpo", settings=settings, progress=False)
dpo.metrics[["loss", "margin", "logps/chosen", "logps/rejected"]]

# %% [markdown]
# ## The recorded study: DPO once, DPO in rounds, and the SFT policy

# %%
METHODS = ("sft", "dpo", "iterative_dpo")
show(
    "pocket_methods",
    {
        "gold score": lambda f: {m: f[m]["gold"] for m in METHODS},
        "KL": lambda f: {m: f[m]["kl"] for m in METHODS},
        "seconds": lambda f: {m: f[m]["seconds"] for m in METHODS},
    },
    smoke={"margin": {"dpo": points(dpo, "margin")}},
)
