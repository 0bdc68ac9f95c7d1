#!/bin/bash
# A run on SLURM: `sbatch --export=ALL,CONFIG=train.toml,RUN=/shared/run slurm.sh`. Each node has one GPU; RUN is on
# a disk that all nodes see. Handed in again after an end, it goes on with the run.
#SBATCH --job-name=genenv
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
set -euo pipefail

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
on_head=(srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}")
read -r head _ < <("${on_head[@]}" hostname --ip-address)
"${on_head[@]}" ray start --head --node-ip-address="$head" --port=6379 \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus=1 --block &
for _ in {1..60}; do
    if ray health-check --address "$head:6379"; then break; fi
    sleep 2
done
srun --overlap --nodes="$((SLURM_JOB_NUM_NODES - 1))" --ntasks="$((SLURM_JOB_NUM_NODES - 1))" \
    --exclude="${nodes[0]}" ray start --address="$head:6379" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus=1 --block &

if [ -e "$RUN/config.toml" ]; then what=(--resume); else what=("$CONFIG"); fi
genenv launch "${what[@]}" --ray "$head:6379" --out "$RUN" --vllm --wait 300 \
    --servers "$((SLURM_JOB_NUM_NODES - 1))" --gpus-per-server 1 --cpus-per-server 4 --trainer-gpus 1 --trainer-cpus 4
