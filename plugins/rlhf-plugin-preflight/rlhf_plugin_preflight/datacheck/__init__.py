"""`rlhf data check`: what training would make of a data set, without training."""
