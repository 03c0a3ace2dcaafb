# %% [markdown]
# # 10 LoRA against full fine-tuning
#
# *What is lost when a few weights are trained instead of all?*
#
# $W' = W + \frac{\alpha}{r} B A$ with $A \in R^{r \times n}$, $B \in R^{m \times r}$, $B = 0$ at the start: $r (m +
# n)$ weights for a matrix of $m n$. Gradients and moments exist for these alone. The best learning rate is about ten
# times that of full fine-tuning, so comparing both at one rate says nothing.

# %%
from rlhf_core import train
from rlhf_study.notebook import OFFLINE, curves, points, show

rate = {"trainer.optimizer.learning_rate": 1e-3}
ranks = {"full": {}, "r=16": {"model.lora.r": 16, **rate}, "r=1": {"model.lora.r": 1, **rate}}
runs = {name: train("sft", settings={**OFFLINE, **lora}, progress=False) for name, lora in ranks.items()}
total = sum(weight.numel() for weight in runs["full"].model().parameters())
shapes = [tuple(w.shape) for n, w in runs["full"].model().named_parameters() if "_proj" in n]
for rank in (16, 1):
    trained = sum(rank * sum(shape) for shape in shapes)
    print(f"r={rank}: {trained:,} weights of {total:,}, {trained / total:.2%}, if every projection is adapted")

# %% [markdown]
# ## The study: four ranks

# %%
show(
    "lora_rank_sft",
    {"held-out loss": curves("eval/loss"), "gradient": curves("grad_norm")},
    smoke={"loss": {name: points(run, "loss") for name, run in runs.items()}},
    lines=("002:246",),
)
