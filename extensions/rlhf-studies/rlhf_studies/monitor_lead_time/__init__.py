"""How early the reward-hacking monitor speaks."""
