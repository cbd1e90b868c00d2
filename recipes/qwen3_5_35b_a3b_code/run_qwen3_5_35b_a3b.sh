#!/usr/bin/env bash
# Qwen3.5-35B-A3B on KodCode-Light-RL-10K: 4 replicas of two GPUs each.
# What it needs and what to expect: README.md beside this script.
#
#   VARIANTS="uniform verl tailsieve mtp_uniform mtp" \
#       bash recipes/qwen3_5_35b_a3b_code/run_qwen3_5_35b_a3b.sh [further Hydra overrides]

set -euo pipefail

RECIPE=qwen3_5_35b_a3b_code
MODEL=${MODEL:-Qwen/Qwen3.5-35B-A3B}
DATA=${DATA:-data/kodcode}
DRAFTER=${DRAFTER:-z-lab/Qwen3.5-35B-A3B-DFlash}
HAS_MTP=1

# The other knobs are described in it.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common/run.sh"
