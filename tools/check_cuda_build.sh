#!/bin/sh
# check_cuda_build.sh [JOBS]: builds build/cuda, against the libtorch of a PyTorch, and runs there what needs no GPU: the tests of what
# knows libtorch, whole jobs on the processor, that the two Protobufs keep apart, the bundle on a bare machine, and tools/gpu.
# Not part of CI: it loads 3 GB and compiles for a quarter of an hour.
set -eu
cd "$(dirname "$0")/.."
jobs="${1:-$(nproc)}"
make --no-print-directory cuda "JOBS=$jobs"
tests="worker_core_test model_test torchscript_test fused_cross_entropy_test device_state_test device_test training_reference_test"
examples/fetch_data.sh fashion-mnist
# shellcheck disable=SC2086  # several words
cmake --build build/cuda --parallel "$jobs" --target $tests cuda_device_fake_test fake_nvml
ctest --test-dir build/cuda --output-on-failure --no-tests=error \
  --tests-regex "^($(echo "$tests" | tr ' ' '|')|symbols_test|small_job_test|bundle_test|gpu_scripts_test)\$"
