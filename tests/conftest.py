"""verl and vLLM run on their CPU platform in every test; set before anything imports them."""

import os

from tailsieve_verl.workloads.cpu_run import ENVIRONMENT

os.environ.update(ENVIRONMENT)
