#!/bin/sh
# Two trees on one GPU, in turn: compare.sh OUTPUT_FOLDER PYTHON OTHER_TREE [REGEX]
# Runs benchmarks.hopper for the cases that match REGEX, and memory_bound --quick, in OTHER_TREE, in
# this one, and in OTHER_TREE again, so that what the GPU does meanwhile shows; logs and result files
# of each in OUTPUT_FOLDER/<before|after|again>.
set -u
[ $# -ge 3 ] || { sed -n 2,5p "$0"; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
python=$2 other=$(cd "$3" && pwd) regex=${4:-.}
here=$(cd "$(dirname "$0")/.." && pwd)
path=${PYTHONPATH:-}
for turn in before after again; do
    tree=$other
    [ "$turn" = after ] && tree=$here
    mkdir -p "$out/$turn"
    cd "$tree" || exit 2
    export PYTHONPATH="$tree:$path" PYTHONUNBUFFERED=1 TILEC_CACHE=0
    timeout -k 5 150 "$python" -m benchmarks.hopper --runs 1 --only "$regex" \
        --output "$out/$turn" >"$out/$turn/hopper.log" 2>&1
    [ "$turn" = again ] || timeout -k 5 100 "$python" -m benchmarks.memory_bound --quick \
        --output "$out/$turn" >"$out/$turn/memory_bound.log" 2>&1
    echo "== $turn"
    grep -h "^|" "$out/$turn"/*.md || tail -n 5 "$out/$turn"/*.log
done
