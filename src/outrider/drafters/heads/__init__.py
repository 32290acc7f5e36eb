"""Trained heads: their shapes, their graphs and their files. One graph serves decoding and training."""
