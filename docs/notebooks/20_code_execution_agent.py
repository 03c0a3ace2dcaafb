# %% [markdown]
# # 20 An agent that runs its code
#
# *What is it worth to run a fix before answering?*
#
# Write, run, read the traceback, revise, at most six times. The score is the share of asserts that pass, some of
# which the agent never saw. Programs run in a sandbox: no network, no files of others, limits on time and memory; a
# machine that cannot isolate refuses, unless told otherwise as below, where the programs are our own.

# %%
from rlhf_study.notebook import rlhf, show

unsafe = "--set python_exec.sandbox.unsafe_local_execution=true"
played = rlhf(f"eval code_debug --agent zero_shot --agent code_executor --backend scripted --tier easy {unsafe} --json")
smoke = {key: {e["agent"]: e[key] for e in played["evaluations"]} for key in ("calls", "seconds")}
print("the script knows every fix: only calls and seconds differ")

# %% [markdown]
# ## The study: small models, three tiers

# %%
show(
    "agent_claims",
    {
        "share of asserts": lambda f: {
            row["agent"]: row["value"]
            for row in f["lines"]
            if row["suite"] == "code_debug" and row.get("value") is not None
        }
    },
    smoke=smoke,
)
