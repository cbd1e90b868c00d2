#!/usr/bin/env bash
# Qwen3-30B-A3B-Instruct-2507 on DeepScaleR: 4 replicas of two GPUs each.
# What it needs and what to expect: README.md beside this script.
#
#   VARIANTS="uniform verl tailsieve" \
#       bash recipes/qwen3_30b_a3b_math/run_qwen3_30b_a3b.sh [further Hydra overrides]

set -euo pipefail

RECIPE=qwen3_30b_a3b_math
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B-Instruct-2507}
DATA=${DATA:-data/deepscaler}
DRAFTER=${DRAFTER:-}
HAS_MTP=0

# The other knobs are described in it.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common/run.sh"
