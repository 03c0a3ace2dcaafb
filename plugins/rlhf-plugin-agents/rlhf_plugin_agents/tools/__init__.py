"""Tools over fixtures, and the box that an agent calls them in."""
