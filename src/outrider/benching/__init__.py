"""Benchmarks: strategies against plain decoding on prompts of six kinds, in one process; what was measured, and a page.

prompts.py   sixty prompts of six kinds
"""
