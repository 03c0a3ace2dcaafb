# %% [markdown]
# # 12 Two model sizes
#
# *Do the gains of a pipeline grow with the model?*
#
# Scaling laws are lines in logarithms, $m(N) = a + b \log N$. Two points always lie on a line, so two sizes can
# contradict growth but not show its form. Sizes must have equal data, updates and seeds, and a learning rate each.
# Below, two models begin with random weights.

# %%
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rlhf_core import train
from rlhf_plugin_pocket import weights_path
from rlhf_study.notebook import OFFLINE, last, points, show


def untrained(width):
    """A folder with a model of this width, with the pocket model's tokenizer."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "head_dim": width // 4}
    config = AutoConfig.from_pretrained(weights_path(), num_attention_heads=4, num_key_value_heads=4, **sizes)
    folder = f"runs/width-{width}"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(weights_path()).save_pretrained(folder)
    return folder


settings = {**OFFLINE, "trainer.optimizer.learning_rate": 1e-3, "trainer.max_steps": 8}
runs = {f"width {width}": train("sft", model=untrained(width), settings=settings, progress=False) for width in (32, 64)}
{name: sum(weight.numel() for weight in run.model().parameters()) for name, run in runs.items()}

# %% [markdown]
# ## The study: reward models and DPO of four sizes

# %%
show(
    "model_sizes",
    {"held-out accuracy": last("eval/accuracy")},
    smoke={"loss": {name: points(run, "loss") for name, run in runs.items()}},
)
