"""The kissing number without a model."""
