"""Strategy that divides optimizer state, gradients and weights by DeepSpeed's ZeRO."""
