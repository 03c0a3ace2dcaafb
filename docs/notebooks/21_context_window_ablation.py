# %% [markdown]
# # 21 A list of facts or a scratchpad
#
# *From how many hops on do compressed notes beat a growing list?*
#
# After $n$ hops a list has $n f$ words; a scratchpad at most 150, at one more request per hop ($2 + 3n$ against $2 +
# 2n$). The list loses when it no longer fits the window. A deterministic reader makes no other mistake, so the
# crossing depends on words per fact and window alone.

# %%
from rlhf_study.notebook import draw, last, rlhf, show

reader = "--backend scripted --set backend.script=reader --set backend.context_words=100"
played = rlhf(f"eval chains --agent multi_agent --agent scratchpad {reader} --json")
right = {
    e["agent"]: [(int(hops), of["right"]["value"]) for hops, of in e["levels"].items()] for e in played["evaluations"]
}
draw({"right, a window of 100 words": [right]}, x="hops")

# %% [markdown]
# ## The study: a small model fine-tuned as each agent

# %%
show(
    "trained_agents",
    {"right, 2 hops": last("measured/two_hops"), "right, 8 hops": last("measured/eight_hops")},
    smoke={"right, a window of 100 words": right},
    lines=("002:811",),
    x="hops",
)
