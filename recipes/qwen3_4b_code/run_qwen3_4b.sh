#!/usr/bin/env bash
# Qwen3-4B-Instruct-2507 on KodCode-Light-RL-10K: 8 replicas of one GPU each.
# What it needs and what to expect: README.md beside this script.
#
#   VARIANTS="uniform verl tailsieve" \
#       bash recipes/qwen3_4b_code/run_qwen3_4b.sh [further Hydra overrides]

set -euo pipefail

RECIPE=qwen3_4b_code
MODEL=${MODEL:-Qwen/Qwen3-4B-Instruct-2507}
DATA=${DATA:-data/kodcode}
DRAFTER=${DRAFTER:-}
HAS_MTP=0

# The other knobs are described in it.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common/run.sh"
