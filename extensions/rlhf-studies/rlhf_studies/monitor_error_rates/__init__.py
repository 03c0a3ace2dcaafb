"""How often the reward-hacking monitor is wrong, over simulated and recorded runs."""
