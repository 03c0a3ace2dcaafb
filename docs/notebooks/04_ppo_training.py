# %% [markdown]
# # 04 PPO
#
# *What does PPO do with a learned reward, and what holds it back?*
#
# With $\rho_t = \pi_\theta / \pi_{old}$ and an advantage $A_t$ from a critic, PPO maximises $E[\min(\rho_t A_t,\
# \mathrm{clip}(\rho_t, 1 \pm \epsilon) A_t)]$. The reward is $r_\phi(x, y) - \beta \log(\pi_\theta / \pi_{ref})$:
# without the KL term the policy finds answers that the reward model wrongly likes. An adaptive controller moves
# $\beta$ towards a target KL. Four models: policy, critic, reference, reward.

# %%
from rlhf_core import train
from rlhf_study.notebook import OFFLINE, ONLINE, curves, points, show

rm = train("reward_model", settings=OFFLINE, progress=False)
ppo = train("ppo", reward="bradley_terry", settings={**ONLINE, "reward.path": str(rm.model_path)}, progress=False)
ppo.metrics[["reward/mean", "kl", "kl_coefficient", "clip_fraction", "value_loss"]]

# %% [markdown]
# ## The recorded study: three controllers

# %%
show(
    "kl_control",
    {"KL": curves("kl"), "reward": curves("eval/reward/mean"), "gold score": curves("eval/gold/value")},
    smoke={"KL": {"ppo": points(ppo, "kl")}, "reward": {"ppo": points(ppo, "reward/mean")}},
    lines=("002:153",),
)
