"""A reward model where it is most certain."""
