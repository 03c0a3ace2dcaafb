# %% [markdown]
# # 13 Agents on a benchmark
#
# *Which agent solves which kind of task, and at how many calls?*
#
# Outcome: share of right answers, with Wilson's interval. Process: the longest common subsequence of the tools called
# with those of a solution. Two agents play the same tasks, so test pairs: McNemar's $p$ counts tasks that only one
# solves. With $n = 12$ tasks six changes in one direction are the least that gives $p < 0.05$.

# %%
from rlhf_study.notebook import rlhf, show

played = rlhf("eval agentbench_mini --agent zero_shot --agent react --agent plan_and_execute --backend scripted --json")
smoke = {key: {e["agent"]: e[key] for e in played["evaluations"]} for key in ("process", "calls")}
print("the script knows every answer: only process and calls differ")

# %% [markdown]
# ## The study: small models on every suite


# %%
def of(key, suite="agentbench_generated"):
    return lambda f: {
        row["agent"]: row[key] for row in f["lines"] if row["suite"] == suite and row.get(key) is not None
    }


show(
    "agent_claims",
    {"right": of("right"), "process": of("process"), "calls": of("calls")},
    smoke=smoke,
    lines=("002:332", "002:348"),
)
