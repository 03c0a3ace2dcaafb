# %% [markdown]
# # 03 Reward modelling
#
# *How often does a reward model agree with people, and what fools it?*
#
# A linear head on the last token gives $r_\phi(x, y)$. Bradley-Terry: $P(y_w \succ y_l) = \sigma(r_w - r_l)$, so $L =
# -\log \sigma(r_\phi(x, y_w) - r_\phi(x, y_l))$. Chance is 0.5; on noisy human labels 0.7 is good. Only differences
# matter: a reward has no zero. The model starts from the SFT policy.

# %%
from rlhf_core import score, train
from rlhf_study.notebook import OFFLINE, points, show

settings = {**OFFLINE, "trainer.max_steps": 8, "trainer.eval_samples": 64}
rm = train("reward_model", settings=settings, progress=False)
answers = ("It is blue.", "Absolutely! What a great question! It is blue.", "I guess it is blue.")
samples = [{"prompt": "What is the favourite colour of Ada?", "completion": answer} for answer in answers]
for answer, one in zip(answers, score(samples, rm)):
    print(f"{one.value:+.3f}  {answer}")
rm.metrics[["accuracy", "margin", "eval/accuracy"]]

# %% [markdown]
# ## The recorded study: human pairs, a model of 135M parameters

# %%
show(
    "hh_reward_models",
    {
        "held-out accuracy": lambda f: {
            reward: figures["accuracy"] for reward, figures in f["evaluation"]["rewards"].items()
        }
    },
    smoke={"accuracy": {"training": points(rm, "accuracy"), "held out": points(rm, "eval/accuracy")}},
)
