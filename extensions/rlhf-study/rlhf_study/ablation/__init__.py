"""Arms that differ in one thing: their runs, their curves, and what two of them differ by."""
