"""Is it really lossless? Five tiers of tests of an engine as it stands, each with a planted fault that it must find."""

from __future__ import annotations

from outrider.certifying.certificate import Certificate, Check, Tier
from outrider.certifying.run import certify

__all__ = ["Certificate", "Check", "Tier", "certify"]
