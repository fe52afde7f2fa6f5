"""The switch of the mutants in an instrumented copy of the core."""

import os
from collections import defaultdict

ACTIVE: defaultdict[int, bool] = defaultdict(bool)
"""Number of a mutant → whether it is active. Its keys are the mutants that ran: reading a switch creates it. A lookup
instead of a call, because some tests count calls."""
if "MAGNETAR_MUTANT" in os.environ:
    ACTIVE[int(os.environ["MAGNETAR_MUTANT"])] = True
