"""Does what is promised hold under kills and faults? ``python -m scripts.faults [NAME ...] [KEY=VALUE ...]``."""
