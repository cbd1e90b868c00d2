# Sourced by every recipe's run_*.sh, which sets RECIPE, MODEL, DATA, DRAFTER and HAS_MTP: one verl run for each of
# VARIANTS, one after the other, then their comparison. Knobs, from the environment; further arguments are Hydra
# overrides and win.
#
#   VARIANTS    uniform verl tailsieve fixed, and where the model can: mtp_uniform mtp dflash_uniform dflash
#   MODEL       hub name or folder            DATA   folder with train.parquet, written by `tailsieve data`
#   DRAFTER     DFlash drafter, hub name or folder; empty where there is none
#   OUT         runs go to OUT/<variant>      STEPS  training steps
#   NNODES, NGPUS                             nodes, and GPUs on each
#   MICRO_BATCH trajectories a GPU            SAVE_FREQ  steps between checkpoints (the last step is always saved)
#   PYTHON      the interpreter that has verl
#   DRY_RUN=1   print the commands, run nothing

set -euo pipefail

# Through links, and whatever CDPATH says.
RECIPES=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
VARIANTS=${VARIANTS:-"uniform verl tailsieve"}
OUT=${OUT:-runs/$RECIPE}
STEPS=${STEPS:-30}
NNODES=${NNODES:-1}
NGPUS=${NGPUS:-8}
MICRO_BATCH=${MICRO_BATCH:-8}
SAVE_FREQ=${SAVE_FREQ:-$STEPS}
PYTHON=${PYTHON:-python3}
DRY_RUN=${DRY_RUN:-0}

fail() {
    echo "error: $*" >&2
    exit 2
}

run() {
    if [[ $DRY_RUN != 0 ]]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

# A Hydra override; a value with a character that Hydra's grammar would take for its own is quoted.
override() {
    local value=$2 LC_ALL=C
    if [[ $value =~ [^A-Za-z0-9_./:@+-] ]]; then
        value="'${value//\'/\\\'}'"
    fi
    printf '%s=%s' "$1" "$value"
}

# Everything that can be wrong is said before the first run starts.
known=$(printf '%s\n' "$RECIPES"/common/variant/*.yaml | sed 's|.*/||; s|\.yaml$||' | paste -sd ' ')
[[ -n ${VARIANTS// /} ]] || fail "VARIANTS names nothing; known are $known."
seen=" "
for variant in $VARIANTS; do
    [[ " $known " == *" $variant "* ]] || fail "VARIANTS names $variant; known are $known."
    [[ $seen != *" $variant "* ]] || fail "VARIANTS names $variant twice."
    seen+="$variant "
    [[ $variant != mtp* || $HAS_MTP == 1 ]] || fail "variant $variant: $MODEL has no MTP head; leave it out."
    [[ $variant != dflash* || -n $DRAFTER ]] ||
        fail "variant $variant needs a DFlash drafter, and none is known for $MODEL; set DRAFTER or leave it out."
done
for knob in STEPS NNODES NGPUS MICRO_BATCH SAVE_FREQ; do
    [[ ${!knob} =~ ^[1-9][0-9]*$ || $knob == SAVE_FREQ && ${!knob} == -1 ]] ||
        fail "$knob=${!knob} must be a whole number of at least 1."
done
if [[ $DRY_RUN == 0 && ! -f $DATA/train.parquet ]]; then
    fail "$DATA/train.parquet is missing; write it with: tailsieve data ${DATA##*/} --out $DATA"
fi

for variant in $VARIANTS; do
    folder=$OUT/$variant
    progress=$folder/latest_checkpointed_iteration.txt
    if [[ -f $progress && $(<"$progress") -ge $STEPS ]]; then
        echo "$folder has its $STEPS steps already"
        continue
    fi
    drafter=()
    if [[ $variant == dflash* ]]; then
        drafter=("$(override trainer.v1.tailsieve.speculation.model "$DRAFTER")")
    fi
    # A file for each launch: verl empties the one it is given, also when a run is resumed.
    export VERL_FILE_LOGGER_PATH=$folder/metrics-$(date +%Y%m%d-%H%M%S).jsonl
    [[ $DRY_RUN != 0 ]] || mkdir -p "$folder"
    run "$PYTHON" -m verl.trainer.main_ppo --config-dir "$RECIPES" "+$RECIPE=recipe" "+common/variant=$variant" \
        "$(override actor_rollout_ref.model.path "$MODEL")" \
        "$(override data.train_files "$DATA/train.parquet")" \
        "$(override data.val_files "$DATA/train.parquet")" \
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$MICRO_BATCH" \
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=$MICRO_BATCH" \
        "trainer.nnodes=$NNODES" \
        "trainer.n_gpus_per_node=$NGPUS" \
        "trainer.total_training_steps=$STEPS" \
        "trainer.save_freq=$SAVE_FREQ" \
        "trainer.experiment_name=$RECIPE-$variant" \
        "$(override trainer.default_local_dir "$folder")" \
        "$(override trainer.rollout_data_dir "$folder/rollouts")" \
        "$(override hydra.run.dir "$folder/hydra")" \
        "${drafter[@]}" "$@"
done

if [[ $(wc -w <<<"$VARIANTS") -gt 1 ]]; then
    runs=()
    for variant in $VARIANTS; do runs+=("$OUT/$variant"); done
    run "$PYTHON" -m tailsieve_verl.cli.main compare "${runs[@]}" --out "$OUT/comparison"
fi
