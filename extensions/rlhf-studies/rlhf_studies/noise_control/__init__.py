"""What a reward without information does to a policy."""
