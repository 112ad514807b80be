#!/bin/sh
# What needs a GPU: gpu_check.sh OUTPUT_FOLDER PYTHON [STEP...]
# STEP: examples (60 s), tests (240 s), launch (40 s), memory_bound (240 s), compile_time (240 s);
# all of them if none is named. Each command runs under a time limit and leaves a log in
# OUTPUT_FOLDER, the benchmarks their result files too. Installs nothing; what tilec depends on is
# found through PYTHONPATH. BENCH_FLAGS is handed to memory_bound, such as "--quick". Exits with 1
# if anything failed.
set -u
[ $# -ge 2 ] || { sed -n 2,7p "$0"; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
python=$2
shift 2
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
failed=0

run() { # seconds name command...
    limit=$1 name=$2
    shift 2
    begin=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    echo "$name: exit $code, $(($(date +%s) - begin)) s"
    if [ $code -ne 0 ]; then
        failed=1
        tail -n 20 "$out/$name.log"
    fi
}

bench() { # seconds name flags...
    limit=$1 name=$2
    shift 2
    run "$limit" "$name" "$python" -m "benchmarks.$name" --output "$out" "$@"
    cat "$out"/*-"$name".md 2>/dev/null
}

for step in ${*:-examples tests launch memory_bound compile_time}; do
    case $step in
    examples)
        for example in examples/[0-9]*.py; do
            run 40 "$(basename "$example" .py)" "$python" "$example"
        done ;;
    tests) run 240 gpu_tests "$python" -m pytest -q -m gpu -p no:cacheprovider tests/gpu ;;
    launch) bench 40 launch ;;
    memory_bound) bench 240 memory_bound ${BENCH_FLAGS:-} ;;
    compile_time) bench 240 compile_time ;;
    *) echo "unknown step $step"; failed=1 ;;
    esac
done
exit $failed
