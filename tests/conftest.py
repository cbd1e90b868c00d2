"""verl and vLLM run on their CPU platform in every test; set before anything imports them."""

import os

from hypothesis import settings

from tailsieve_verl.workloads.cpu_run import ENVIRONMENT

os.environ.update(ENVIRONMENT)

# The default run is the same run everywhere; TAILSIEVE_EXPLORE=1 draws new examples, to look for what it misses.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("explore" if os.environ.get("TAILSIEVE_EXPLORE") else "same")
