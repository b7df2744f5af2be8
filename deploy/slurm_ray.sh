#!/bin/bash
#SBATCH --job-name=tamis-ray
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=1-00:00:00
#
# A Ray cluster on the nodes of one job, and a run on it. All arguments are those of `tamis run`:
#
#     sbatch --nodes=8 deploy/slurm_ray.sh recipe.yaml --output /shared/clean
#
# TAMIS_CONTAINER is the command that enters a container with Tamis and Ray, as in slurm_array.sh; without it, both are on the nodes.
# The output and, if there is one, the exchange must be on a file system or in an object store that all nodes see.
set -euo pipefail

# A secret of this job, which srun passes on; other users of the nodes cannot use its cluster.
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

read -ra container <<<"${TAMIS_CONTAINER:-}"
port=${TAMIS_RAY_PORT:-6379}
cpus=${SLURM_CPUS_PER_TASK:-1}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address)
address=${address%% *}:$port

# With --block, Ray ends with the step, and all steps end with the job.
srun --nodes=1 --ntasks=1 --nodelist="$head" \
    "${container[@]}" ray start --head --node-ip-address="${address%:*}" --port="$port" --num-cpus="$cpus" \
    --include-dashboard=false --disable-usage-stats --block &
steps=($!)
trap 'kill "${steps[@]}" 2>/dev/null || true; wait' EXIT

until "${container[@]}" ray health-check --address "$address" >/dev/null 2>&1; do
    kill -0 "${steps[0]}"  # the head has ended
    sleep 1
done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --nodelist="$node" \
        "${container[@]}" ray start --address="$address" --num-cpus="$cpus" --disable-usage-stats --block &
    steps+=($!)
done

"${container[@]}" tamis run "$@" --executor ray --address "$address"
