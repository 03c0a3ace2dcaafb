# %% [markdown]
# # 07 Constitutional AI: labels of a model
#
# *Can labels of a judge with a constitution replace those of people?*
#
# A judge reads principles and two answers and names the better; a reward model learns from these labels with the same
# Bradley-Terry loss. A judge may prefer the first place, so each pair is asked in both orders. Two error rates
# matter: noise, which more pairs average out, and bias, which they do not. `rlhf data generate preferences` asks a
# real judge; below, the gold score with one label in ten turned round stands in for it.

# %%
import random

from rlhf_core import train
from rlhf_plugin_pocket import gold_score, load_pairs, questions
from rlhf_study.notebook import OFFLINE, last, points, show

facts = {question: fact for fact, question, _ in questions()}
random.seed(0)


def judged(pair):
    """The pair as a judge orders it who knows the facts and errs in one of ten."""
    fact = facts[pair["prompt"]]
    sides = sorted(
        (pair["rejected"], pair["chosen"]), key=lambda text: gold_score(fact.attribute.name, fact.value, text).value
    )
    rejected, chosen = sides if random.random() > 0.1 else reversed(sides)
    return {**pair, "chosen": chosen, "rejected": rejected}


pairs, heldout = load_pairs("train")[:256], load_pairs("heldout")[:64]
labels = {"people": pairs, "judge": [judged(pair) for pair in pairs]}
runs = {
    who: train("reward_model", dataset={"train": rows, "heldout": heldout}, settings=OFFLINE, progress=False)
    for who, rows in labels.items()
}
agree = sum(a["chosen"] == b["chosen"] for a, b in zip(pairs, labels["judge"])) / len(pairs)
print(f"people and judge agree on {agree:.0%} of pairs")

# %% [markdown]
# ## The study: equally many labels of each

# %%
show(
    "ai_labels",
    {"held-out accuracy": last("eval/accuracy"), "margin": last("eval/margin")},
    smoke={"loss": {who: points(run, "loss") for who, run in runs.items()}},
)
