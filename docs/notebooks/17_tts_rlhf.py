# %% [markdown]
# # 17 Preferences for speech
#
# *Can acoustic features stand in for listeners?*
#
# A policy that writes codec tokens is trained by the same DPO loss as a text policy: $\log \pi(y|x)$ is a sum over
# tokens. What differs is the reward: five features (pitch variance, harmonics to noise, voicing, dynamics, MFCC
# stability) feed a Bradley-Terry head. Its accuracy is measured on pairs that share no clip with training.

# %%
from rlhf_study.notebook import curves, rlhf, show

made = rlhf("data speech --count 3 --max-tokens 120 --output runs/clips/pairs.jsonl --json")
head = rlhf("tts train-reward --pairs runs/clips/pairs.jsonl --output runs/clips/reward --json")
print(made, head)

# %% [markdown]
# ## The study: accuracy by the number of pairs, on two samples of one prompt


# %%
def accuracy(f):
    return {
        engine: [(int(size), row["same policy"]["accuracy"]) for size, row in sizes.items() if size.isdigit()]
        for engine, sizes in f["table"].items()
    }


show(
    "speech_reward_pairs",
    {"held-out accuracy": accuracy},
    smoke={"ordered as labelled": {"training": head["train_accuracy"], "held out": head["heldout"]["accuracy"]}},
    lines=("002:508", "002:522"),
    x="pairs",
)
show("speech_iterations", {"reward by iteration": curves("eval/reward/mean")}, x="iteration")
