"""How much of the returns PPO's critic could explain."""
