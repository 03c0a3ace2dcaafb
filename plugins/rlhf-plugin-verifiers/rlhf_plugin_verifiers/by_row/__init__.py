"""A verifier for each row, and rows of RLVR data sets as published."""
