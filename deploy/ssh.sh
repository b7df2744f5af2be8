#!/bin/bash
# One shard of a run per host, started over SSH. The first argument is a file with a host per line, the second the output,
# which all hosts see under this name; the others are those of `tamis run`:
#
#     deploy/ssh.sh hosts.txt /shared/clean recipe.yaml --memory 32GB
#
# Waits for all shards. If one fails, the others finish what they can; run the command again to resume.
# TAMIS is the command on the hosts, and SSH the one that reaches them.
set -euo pipefail

tamis=${TAMIS:-tamis}
ssh=${SSH:-ssh -o BatchMode=yes}
output=$2
mapfile -t hosts < <(grep -v '^[[:space:]]*\(#\|$\)' "$1")
shift 2

arguments=$(printf '%q ' run "$@" --output "$output")
shards=()
for number in "${!hosts[@]}"; do
    # -tt would end the remote process with the connection; without it, a shard continues if this machine is switched off.
    # shellcheck disable=SC2086  # the commands may have options
    $ssh "${hosts[number]}" "$tamis $arguments --shard $((number + 1))/${#hosts[@]}" </dev/null &
    shards+=($!)
done
for number in "${!shards[@]}"; do
    wait "${shards[number]}" || echo "shard $((number + 1)) on ${hosts[number]} ended with an error" >&2
done
# shellcheck disable=SC2086
$ssh "${hosts[0]}" "$tamis merge $(printf '%q' "$output")" </dev/null
