"""Targets: checkpoints, tokenizers, the native decoder, and the adapter for transformers models."""
