"""`rlhf push`: a model on the Hugging Face hub."""
