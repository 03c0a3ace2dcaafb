"""`rlhf chat`: talk to a model, or to two side by side."""
