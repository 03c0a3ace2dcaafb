"""Log-probabilities of completions under a policy, with gradient."""
