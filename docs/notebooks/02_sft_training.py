# %% [markdown]
# # 02 Supervised fine-tuning
#
# *What do demonstrations teach, and at what price against other teachers?*
#
# SFT minimises $L = -\frac{1}{\sum m_t} \sum_t m_t \log \pi_\theta(y_t \mid x, y_{<t})$. The mask $m_t$ is 0 on the
# prompt (label $-100$ in torch), so that the gradient comes from the answer alone. The result becomes $\pi_{ref}$:
# later stages only move probability among texts that it can already write.

# %%
from rlhf_core import generate, train
from rlhf_study.notebook import OFFLINE, last, points, show

sft = train("sft", settings={**OFFLINE, "trainer.max_steps": 8}, progress=False)
print(generate(sft, "What pet does Ada have?", max_tokens=24)[0][0].text)
sft.metrics[["loss", "eval/loss", "train/tokens"]]

# %% [markdown]
# ## The recorded study: demonstrations, a teacher, a reward

# %%
show(
    "distilled",
    {"gold score": lambda f: {method: f[method]["gold"] for method in f}},
    smoke={"loss": {"sft": points(sft, "loss")}},
)
show("sft_epochs", {"gold score after SFT of so many epochs": last("eval/gold/value")})
