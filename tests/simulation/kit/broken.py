"""A pytest plugin: the rule that the environment names is broken in every test of this run."""

from __future__ import annotations

import os

from tests.simulation.kit.mutant import BROKEN_RULE
from tests.simulation.kit.mutants import break_for_good

break_for_good(os.environ[BROKEN_RULE])
