"""Every reasoning-gym task as a data set with its own verifier."""
