"""What the studies share: training runs, tables, plots, the pocket world's rows, outside data."""
