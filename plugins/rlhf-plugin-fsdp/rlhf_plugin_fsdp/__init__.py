"""Strategy that shards weights, gradients and moments by torch's FSDP2."""
