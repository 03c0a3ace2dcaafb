# %% [markdown]
# # 19 Planner and executors
#
# *Do queries that stand by themselves help on several hops?*
#
# One agent that plans and acts carries all it read; its queries may refer to "the company above". A planner that
# writes $q_1, ..., q_n$ in advance, and executors that see one sub-task and the facts so far, cannot. Price: a
# request per fact and one to combine, $2 + 2n$ for $n$ hops.

# %%
from rlhf_study.notebook import last, rlhf, show

agents = "--agent plan_and_execute --agent multi_agent"
played = rlhf(f"eval agentbench_generated {agents} --category multi_step --backend scripted --set count=6 --json")
smoke = {key: {e["agent"]: e[key] for e in played["evaluations"]} for key in ("requests", "prompt_tokens")}
print("the script knows every answer: only the price differs")

# %% [markdown]
# ## The study: a small model fine-tuned as each agent

# %%
show(
    "trained_agents",
    {"right": last("measured/right"), "right, several steps": last("measured/multi_step")},
    smoke=smoke,
    lines=("002:332",),
)
