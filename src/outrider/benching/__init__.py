"""Benchmarks: strategies against plain decoding on prompts of six kinds, in one process; what was measured, and a page.

prompts.py asked.py          prompts of six kinds; those that are decoded
ways.py peers.py             ways of decoding: this library's on one target, other engines on the same weights
run.py                       every group of prompts by every way in turn
figures.py foretelling.py    speeds, speed-ups, intervals; what was to be expected
report.py provenance.py      all of it as one JSON object
tables.py page.py plots.py   all of it for people
"""
