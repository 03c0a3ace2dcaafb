"""Language models that speak the codes of a neural codec of transformers."""
