# %% [markdown]
# # 09 Process against outcome reward models
#
# *Who notices a right answer that wrong steps lead to?*
#
# An ORM has one label per solution. A PRM labels every step: $L = -\frac{1}{S} \sum_s c_s \log p_s + (1 - c_s) \log(1
# - p_s)$, and scores a solution by the minimum, mean or product of $p_s$. With two slips that cancel, the outcome is
# right: its label says nothing, while a step's label says where.

# %%
from rlhf_core import train
from rlhf_study.notebook import points, show

small = {"seed": 0, "trainer.max_steps": 4, "trainer.eval_samples": 16}
models = {name: train(name, settings=small, progress=False) for name in ("prm", "orm")}
models["prm"].metrics[["loss", "accuracy_right", "accuracy_wrong"]]

# %% [markdown]
# ## The recorded study: share of faulty solutions that are flagged, at 1 false alarm in 20

# %%
READINGS = ("orm", "min", "mean", "product")
show(
    "prm_vs_orm",
    {
        kind: lambda f, key=key: {r: f["all kinds"]["readings"][r][key]["flagged"] for r in READINGS}
        for kind, key in (("wrong answer", "carried"), ("a slip, right answer", "slip"), ("slips cancel", "cancelled"))
    },
    smoke={"loss": {name: points(run, "loss") for name, run in models.items()}},
)
