"""Traces: what speculation did, token by token, in a file; its summary and its page."""
