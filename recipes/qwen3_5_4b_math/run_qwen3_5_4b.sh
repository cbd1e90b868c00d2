#!/usr/bin/env bash
# Qwen3.5-4B on DeepScaleR: 8 replicas of one GPU each.
# What it needs and what to expect: README.md beside this script.
#
#   VARIANTS="uniform verl tailsieve mtp_uniform mtp" \
#       bash recipes/qwen3_5_4b_math/run_qwen3_5_4b.sh [further Hydra overrides]

set -euo pipefail

RECIPE=qwen3_5_4b_math
MODEL=${MODEL:-Qwen/Qwen3.5-4B}
DATA=${DATA:-data/deepscaler}
DRAFTER=${DRAFTER:-z-lab/Qwen3.5-4B-DFlash}
HAS_MTP=1

# The other knobs are described in it.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common/run.sh"
