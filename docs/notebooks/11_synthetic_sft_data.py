# %% [markdown]
# # 11 Synthetic demonstrations
#
# *Do demonstrations that a model drafts, criticises and revises teach as much as human ones?*
#
# A draft, a critique by principles, a revision: $y_0 \sim \pi(\cdot|x)$, $c \sim \pi(\cdot|x, y_0, P)$, $y_1 \sim
# \pi(\cdot|x, y_0, c)$; SFT then learns $y_1$. Principles can remove flattery and padding. They cannot add facts: a
# wrong draft stays wrong. `rlhf data generate sft` does this with a real model; here a rule revises.

# %%
from rlhf_core import generate, train
from rlhf_plugin_pocket import is_hollow, of_split
from rlhf_study.notebook import OFFLINE, last, points, show

facts = of_split("train")[:64]
human = [{"prompt": question, "completion": fact.statement()} for fact, question in facts]
drafts = generate("pocket", [row["prompt"] for row in human], max_tokens=24)


def revised(draft):
    """The first sentence that is not flattery."""
    sentences = [sentence for sentence in draft.replace("!", ".").split(".") if sentence.strip()]
    return next((s.strip() + "." for s in sentences if not is_hollow(s)), draft)


synthetic = [{**row, "completion": revised(draft[0].text)} for row, draft in zip(human, drafts)]
print(drafts[0][0].text, "->", synthetic[0]["completion"])
sources = {"human": human, "synthetic": synthetic, "mixed": human[::2] + synthetic[1::2]}
runs = {name: train("sft", dataset=rows, settings=OFFLINE, progress=False) for name, rows in sources.items()}

# %% [markdown]
# ## The study: three sources, equally many rows

# %%
show(
    "sft_sources",
    {"gold score": last("measured/gold"), "reward": last("measured/reward")},
    smoke={"loss": {name: points(run, "loss") for name, run in runs.items()}},
    lines=("002:285",),
)
