"""Training of heads and draft models on what the target itself writes."""
