"""CSM as a policy: transformers' model over one stream of tokens."""
