"""What Ray's actors cost beside our processes."""
