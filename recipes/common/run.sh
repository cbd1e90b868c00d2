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

RECIPES=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
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
    if [[ $DRY_RUN == 1 ]]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

# Everything that can be wrong is said before the first run starts.
for variant in $VARIANTS; do
    [[ -f $RECIPES/common/variant/$variant.yaml ]] ||
        fail "VARIANTS names $variant; known are $(cd "$RECIPES/common/variant" && echo *.yaml | sed 's/\.yaml//g')."
    [[ $variant != mtp* || $HAS_MTP == 1 ]] || fail "variant $variant: $MODEL has no MTP head; leave it out."
    [[ $variant != dflash* || -n $DRAFTER ]] ||
        fail "variant $variant needs a DFlash drafter, and none is known for $MODEL; set DRAFTER or leave it out."
done
if [[ $DRY_RUN != 1 && ! -f $DATA/train.parquet ]]; then
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
        drafter=("trainer.v1.tailsieve.speculation.model=$DRAFTER")
    fi
    # A file for each launch: verl empties the one it is given, also when a run is resumed.
    export VERL_FILE_LOGGER_PATH=$folder/metrics-$(date +%Y%m%d-%H%M%S).jsonl
    [[ $DRY_RUN == 1 ]] || mkdir -p "$folder"
    run "$PYTHON" -m verl.trainer.main_ppo --config-dir "$RECIPES" "+$RECIPE=recipe" "+common/variant=$variant" \
        "actor_rollout_ref.model.path=$MODEL" \
        "data.train_files=$DATA/train.parquet" \
        "data.val_files=$DATA/train.parquet" \
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$MICRO_BATCH" \
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=$MICRO_BATCH" \
        "trainer.nnodes=$NNODES" \
        "trainer.n_gpus_per_node=$NGPUS" \
        "trainer.total_training_steps=$STEPS" \
        "trainer.save_freq=$SAVE_FREQ" \
        "trainer.experiment_name=$RECIPE-$variant" \
        "trainer.default_local_dir=$folder" \
        "trainer.rollout_data_dir=$folder/rollouts" \
        "hydra.run.dir=$folder/hydra" \
        "${drafter[@]}" "$@"
done

if [[ $(wc -w <<<"$VARIANTS") -gt 1 ]]; then
    runs=()
    for variant in $VARIANTS; do runs+=("$OUT/$variant"); done
    run "$PYTHON" -m tailsieve_verl.cli.main compare "${runs[@]}" --out "$OUT/comparison"
fi
