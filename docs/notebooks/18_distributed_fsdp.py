# %% [markdown]
# # 18 Memory and sharding
#
# *What must a card hold, and what does sharding save?*
#
# Mixed precision with Adam takes $2 + 4 + 4 + 4 + 4 = 18$ bytes per parameter: weights, master copy, gradient, two
# moments. On $N$ ranks DDP holds $18P$, sharded gradients and moments $2P + 16P/N$, full sharding $18P/N$, so nothing
# at $N = 1$. Activations come on top, and no strategy divides them. Our own layout has no master copy: 16 bytes.

# %%
from rlhf_study.notebook import compare, draw, rlhf

shape = "--model shape:layers=24,hidden=1024,heads=16,vocab=50257 --reply-tokens 256 --prompt-tokens 256"
plan = rlhf(f"memory plan --algo sft {shape} --ranks 4 --strategy ddp --device-memory 80GiB --json")
plan["model"]

# %% [markdown]
# ## Peak of each strategy on four cards, planned now

# %%
peaks = {row["strategy"]: row["peak"] / 1e9 for row in plan["strategies"]}
draw({"GB per card, peak": [peaks]})
parameters = plan["model"]["parameters"]
formula = {"ddp": 18, "gradients and moments": 2 + 16 / 4, "full": 18 / 4}
draw({"GB by the formula, no activations": [{name: parameters * each / 1e9 for name, each in formula.items()}]})
compare("002:574", "002:588", "002:599", "002:607")

# %% [markdown]
# Repeat with a model of your own: `rlhf memory plan --algo sft --model FOLDER --ranks 4 --strategy fsdp`
