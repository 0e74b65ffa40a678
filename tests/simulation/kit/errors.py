"""What a simulation fails with."""

from __future__ import annotations


class SimulationError(AssertionError):
    """A checker's verdict, or something that a simulated member must never do."""
