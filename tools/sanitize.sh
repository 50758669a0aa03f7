#!/bin/sh
# Builds and runs, under each sanitizer, the unit, contract and simulation tests that link neither MPI nor libtorch.
set -eu
cd "$(dirname "$0")/.."
for preset in asan tsan; do
  cmake --preset "$preset" -Wno-dev --log-level=WARNING
  cmake --build "build/$preset" --parallel "${1:-2}" -- --quiet
  ctest --test-dir "build/$preset" --output-on-failure --label-regex "unit|contract|sim" --no-tests=error
done
