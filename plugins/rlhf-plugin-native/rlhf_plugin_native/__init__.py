"""The native rollout engine: samples with the policy's own weights, in the training process."""
