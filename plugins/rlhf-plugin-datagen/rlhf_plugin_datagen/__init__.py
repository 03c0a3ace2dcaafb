"""Training data from models; see README.md."""
