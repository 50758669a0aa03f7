#!/bin/sh
# Builds the fuzzers and runs each of them for some seconds: tools/fuzz.sh [SECONDS [TARGET...]]. Starts from tests/fuzz/corpus; what it learns
# stays in build/fuzz/corpus. Fails at the first input that crashes, leaks, hangs, breaks what must hold, or makes one large allocation;
# the input is then in build/fuzz/found.
set -eu
cd "$(dirname "$0")/.."
seconds="${1:-8}"
[ $# -eq 0 ] || shift
cmake --preset fuzz -Wno-dev --log-level=WARNING
cmake --build build/fuzz --parallel "$(nproc)" -- --quiet
[ $# -gt 0 ] || set -- $(cd tests/fuzz/corpus && echo *)
mkdir -p build/fuzz/found
for target in "$@"; do
  mkdir -p "build/fuzz/corpus/$target"
  echo "fuzz $target: $seconds s"
  if ! build/fuzz/bin/"fuzz_$target" -max_total_time="$seconds" -timeout=10 -max_len=16384 -rss_limit_mb=1024 -malloc_limit_mb=64 \
    -artifact_prefix="build/fuzz/found/$target-" -print_final_stats=1 "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" \
    >"build/fuzz/$target.log" 2>&1; then
    tail -n 60 "build/fuzz/$target.log"
    exit 1
  fi
  grep -E "stat::number_of_executed_units|stat::peak_rss_mb" "build/fuzz/$target.log" | tr '\n' ' '
  echo
done
