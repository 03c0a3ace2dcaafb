"""One command that trains a speech policy and measures it before and after."""
