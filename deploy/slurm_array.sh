#!/bin/bash
#SBATCH --job-name=tamis
#SBATCH --array=1-16
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
#
# One shard of a run per task of a job array. All arguments are those of `tamis run`:
#
#     sbatch --array=1-64 deploy/slurm_array.sh recipe.yaml --output /shared/clean
#     sbatch --dependency=afterany:JOB --wrap 'tamis merge /shared/clean'     names shards that are missing
#
# The last shard to finish merges. To run some shards again, name their numbers and how many there are:
#
#     TAMIS_SHARDS=64 sbatch --array=3,17 deploy/slurm_array.sh recipe.yaml --output /shared/clean
#
# To run inside a container, set the command that enters it, e.g. of an image built from docker/Dockerfile:
#
#     apptainer build tamis.sif docker-daemon://tamis:latest
#     TAMIS_CONTAINER="apptainer exec --bind /shared tamis.sif" sbatch --array=1-64 deploy/slurm_array.sh ...
#
# Two minutes before the time limit, Slurm sends SIGTERM: the shard stops, and resumes when it is run again.
set -euo pipefail

if [[ -n "${TAMIS_SHARDS:-}" ]]; then
    shards=$TAMIS_SHARDS
elif [[ "$SLURM_ARRAY_TASK_MIN" == 1 && "$SLURM_ARRAY_TASK_MAX" == "$SLURM_ARRAY_TASK_COUNT" ]]; then
    shards=$SLURM_ARRAY_TASK_COUNT
else
    echo "the array is not 1-N: set TAMIS_SHARDS to the number of shards" >&2
    exit 2
fi

options=(--shard "$SLURM_ARRAY_TASK_ID/$shards" --workers "${SLURM_CPUS_PER_TASK:-auto}")
if [[ -n "${SLURM_MEM_PER_NODE:-}" ]]; then
    options+=(--memory "$((SLURM_MEM_PER_NODE * 9 / 10))MB")  # Slurm counts the page cache of temporary files too
fi
read -ra container <<<"${TAMIS_CONTAINER:-}"
exec "${container[@]}" tamis run "$@" "${options[@]}"
