#!/bin/sh
# usage: check_wheels.sh PYTHON FOLDER
# Builds the wheels with PYTHON (of a development environment), installs them into a new environment with the newest
# version of everything that they allow, without constraints.txt, and runs the main command there with a few steps, and
# a notebook, which installs what else it needs.
# torch alone is pinned, so that pip takes the build for CPUs where its index has one.
set -eu
python=$1 wheels=$2/wheels venv=$2/wheels-venv
cd "$(dirname "$0")/../.."

"$python" -m scripts.dist --out "$wheels" > /dev/null
"$python" -m venv "$venv"
scripts/dev/pip_install.sh "$venv/bin/python" -q --find-links "$wheels" \
    rlhf-core rlhf-plugin-grpo rlhf-plugin-reward rlhf-plugin-pocket rlhf-plugin-preflight rlhf-plugin-health rlhf-plugin-report \
    "$(grep '^torch==' constraints.txt)"
"$venv/bin/python" -m pip list --disable-pip-version-check --format freeze |
    grep -E '^(accelerate|datasets|peft|tokenizers|torch|transformers)=='
"$python" -c 'import json; cells = json.load(open("docs/notebooks/08_reward_ensemble.ipynb"))["cells"]
print(*("".join(c["source"]) for c in cells if c["cell_type"] == "code"), sep="\n\n")' > "$venv/notebook.py"
cd "$venv"
HF_HUB_OFFLINE=1 bin/rlhf train --algo grpo --reward ensemble --run-dir run --set reward.members=2 \
    --set reward.max_pairs=32 --set reward.heldout_pairs=16 --set trainer.steps=2 \
    --set trainer.rollout_batch_size=16 --set trainer.eval_samples=4 --set trainer.gold_samples=0
grep -q '"status": "completed"' run/summary.json
RLHF_WHEELS="$wheels" HF_HUB_OFFLINE=1 MPLBACKEND=Agg bin/python notebook.py | grep '^| 002:217 |'
