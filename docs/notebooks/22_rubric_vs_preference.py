# %% [markdown]
# # 22 A rubric or preferences
#
# *Grades on criteria or preferences between pairs: which makes the better reward model?*
#
# Bradley-Terry learns one number from $y_w \succ y_l$, whatever raters liked, length included. A rubric model has a
# head per criterion and learns grades: $L = \frac{1}{K} \sum_k (h_k(x, y) - g_k)^2$; its score is a weighted mean,
# and its parts say why. Both are tested on the same held-out pairs.

# %%
import random

from rlhf_core import train
from rlhf_plugin_pocket import load_pairs
from rlhf_studies.rubric_vs_bradley_terry.data import RUBRIC, graded
from rlhf_study.notebook import OFFLINE, last, points, show

rows = list(graded(load_pairs("train")[:64], random.Random(0)))
print([criterion["question"] for criterion in RUBRIC], rows[0], sep="\n")
rubric = train(
    "rubric_model", dataset=rows, settings={**OFFLINE, "trainer.rubric": {"criteria": RUBRIC}}, progress=False
)
rubric.metrics.filter(like="loss")

# %% [markdown]
# ## The recorded study

# %%
show(
    "rubric_vs_bradley_terry",
    {
        key: lambda f, key=key: {learned: f[learned]["tested"][key] for learned in f}
        for key in ("agrees with labels", "rank correlation with gold", "hollow phrases in front")
    },
    smoke={"loss": {"rubric": points(rubric, "loss")}},
)
show("rubric_downstream", {"hollow answers": last("eval/gold/hollow"), "KL": last("kl")})
