"""What ``from rlhf_core import train, generate, score, evaluate, load_run`` gives: the commands as functions."""
