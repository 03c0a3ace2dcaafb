"""What `rlhf doctor --device` runs: forwards, engine, strategies and checkpoints against the plain way."""
