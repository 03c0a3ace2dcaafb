"""Audits: does what is promised hold under kills, faults and against a reference? Each is run on its own."""
