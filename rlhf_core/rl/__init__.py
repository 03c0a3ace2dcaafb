"""The on-policy loop: prompts, rollouts, rewards, advantages, update."""
