#!/usr/bin/env bash
# What `make demo` runs: the included sample through a whole recipe, and what can be asked of the result.
#
#   scripts/demo.sh [TAMIS] [OUTPUT]        the command to use, and the folder to write to
set -euo pipefail
cd "$(dirname "$0")/.."
tamis=${1:-tamis} output=${2:-demo-output}
pair=reprint-1838-vanburen-1-011

part() { printf '\n== %s\n' "$1"; }
show() {
  printf '$ tamis %s\n' "$*"
  "$tamis" "$@"
}

rm -rf "$output" "$output-50"
part "1. Clean, choose English, filter, mask addresses and remove near-duplicates, within 1 GB of memory"
show run demo --input 'tamis/recipes/*.jsonl.gz' --output "$output" --memory 1GB --scores --rejects

part "2. Why was this row dropped? Which one was kept in its place?"
show dedup explain "$output" $pair

part "3. Move a threshold: the stored scores decide, no text is measured again"
show rethreshold "$output" --set gopher_quality.min_words=50 --output "$output-50" --memory 1GB

part "4. The report as a page that opens offline"
show report "$output" --html "$output.html"
printf '\nOpen the report in a browser:  file://%s\n' "$PWD/$output.html"
printf 'See any row of it:             %s why %s 1790-washington-1-000\n' "$tamis" "$output"
printf 'Next:                          docs/start.md\n'
