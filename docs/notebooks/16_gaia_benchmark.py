# %% [markdown]
# # 16 GAIA
#
# *At which level does an agent fail: finding, planning, or combining?*
#
# GAIA scores a short answer after normalisation: numbers without units, lists element by element, texts without case
# and punctuation. Level 1 takes about one call, level 2 several, level 3 many. `gaia_mini` imitates it offline with
# ten tasks per level; shares are then multiples of 10 %, and their 95 % intervals are 50 points wide.

# %%
from rlhf_study.notebook import rlhf, show

played = rlhf("eval gaia_mini --agent zero_shot --agent react --backend scripted --levels 1,2 --json")
levels = {e["agent"]: e["levels"] for e in played["evaluations"]}
smoke = {f"calls, level {n}": {agent: of[n]["calls"] for agent, of in levels.items()} for n in ("1", "2")}
print("the script knows every answer: only calls differ")

# %% [markdown]
# ## The study: small models, three levels

# %%
show(
    "agent_claims",
    {
        key: lambda f, key=key: {
            row["agent"]: row[key] for row in f["lines"] if row["suite"] == "gaia_mini" and key in row
        }
        for key in ("right", "calls")
    },
    smoke=smoke,
    lines=("002:464",),
)
