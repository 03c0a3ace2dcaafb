"""Joins the ranks that torchrun, ``accelerate launch`` or ``srun`` started to one run."""
