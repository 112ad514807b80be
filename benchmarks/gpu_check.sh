#!/bin/sh
# Everything that needs a GPU, within about nine minutes: gpu_check.sh OUTPUT_FOLDER [PYTHON]
# Runs the examples, the tests marked gpu and the benchmarks, each with a time limit, and leaves a
# log of each and the result files in OUTPUT_FOLDER. Installs nothing; tilec's dependencies are
# found through PYTHONPATH. Exits with 1 if any step failed.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
python=${2:-python3}
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
failed=0

step() { # seconds name command...
    limit=$1 name=$2
    shift 2
    begin=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    echo "$name: exit $code, $(($(date +%s) - begin)) s"
    if [ $code -ne 0 ]; then
        failed=1
        tail -n 15 "$out/$name.log"
    fi
}

for example in examples/[0-9]*.py; do
    step 60 "$(basename "$example" .py)" "$python" "$example"
done
step 20 launch "$python" -m benchmarks.launch --output "$out"
step 240 memory_bound "$python" -m benchmarks.memory_bound --output "$out" ${BENCH_FLAGS:-}
step 150 compile_time "$python" -m benchmarks.compile_time --output "$out"
step 150 gpu_tests "$python" -m pytest -q -m gpu -p no:cacheprovider
cat "$out"/*-launch.md "$out"/*-compile_time.md "$out"/*-memory_bound.md 2>/dev/null
exit $failed
