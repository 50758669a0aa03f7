#!/bin/sh
# Builds and runs, under each sanitizer, every test that links neither MPI nor libtorch.
set -eu
cd "$(dirname "$0")/.."
for preset in asan tsan; do
  cmake --preset "$preset" -Wno-dev --log-level=WARNING
  cmake --build "build/$preset" --parallel "${1:-2}" -- --quiet
  ctest --test-dir "build/$preset" --output-on-failure --label-exclude "gpu|slow|example" --no-tests=error
done
