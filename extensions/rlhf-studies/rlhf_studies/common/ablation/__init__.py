"""One study of settings that differ in one thing: its arms, their curves, and what two of them differ by."""
