"""The reward-hacking monitor where nothing is hacked."""
