#!/bin/sh
# gpu_scripts_test.sh BIN SOURCE: every line of tools/gpu's scripts, where there is no GPU: on the double of a device, on the fake of CUDA, with a
# PyTorch that says it has one, and with programs in place of those that need one. What passes there is not told by this, but that a script
# does not fail by itself, and does not let pass what has run nothing.
set -eu
bin=$1 source=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
mkdir "$here/bin" "$here/tools" "$here/site" "$here/out"
program() {  # program NAME: what it does from standard input
  { echo "#!/bin/sh"; cat; } >"$here/$1"
  chmod 755 "$here/$1"
}
ln -s "$bin"/../double/bin/* "$here/bin/"
ln -s "$bin/cuda_device_fake_test" "$here/bin/cuda_device_test"
program bin/nccl_test <<'END'
case "$*" in
  *--kill*) echo "rank 0 left in time" ;;
  *) echo "[  PASSED  ] ${TESTS_RUN:-1} test." ;;
esac
END
echo 'echo "ratio 1.000"' | program bin/snapshot_copy_bench
program tools/compute-sanitizer <<'END'
while [ "${1#--}" != "$1" ]; do
  case $1 in
    --tool | --target-processes | --kernel-name | --error-exitcode | --report-api-errors) shift 2 ;;
    *) echo "unknown: $1" && exit 64 ;;
  esac
done
"$@" && echo "========= ERROR SUMMARY: 0 errors"
END
echo 'echo "580.95.05, 1980 MHz, 700.00 W, 30"' | program tools/nvidia-smi
cat >"$here/site/sitecustomize.py" <<'END'
import os
if os.environ.get("PRETEND"):
    import torch, types
    torch.cuda.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 0
    torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(name="none", multi_processor_count=0)
END
program python <<END
case "\$1" in -*) export PRETEND=1 PYTHONPATH="$here/site" ;; esac
exec "${SUREFOOT_PYTHON:-python3}" "\$@"
END
export PATH="$here/tools:$PATH" OUT="$here/out" SUREFOOT_PYTHON="$here/python" LD_LIBRARY_PATH="$bin/fake-nvidia" SUREFOOT_FAKE_GPU=healthy
fail() { echo "$1" && cat "$here/said" && exit 1; }

"$source/tools/gpu/test.sh" "$here/bin" device reduction sanitizer jobs kills >"$here/said" 2>&1 || fail "test.sh has failed"
cat "$here/said"
grep -q "^23 passed, 0 failed" "$here/said" || fail "not all checks have run"
SMALL=1 DEVICE=cpu "$source/tools/gpu/bench.sh" "$here/bin" >"$here/said" 2>&1 || fail "bench.sh has failed"
cat "$here/said"
for line in "surefoot / this 1.000" "compiled deterministic" "ratio 1.000" "back at work" "steps lost    0"; do
  grep -q "$line" "$here/said" || fail "there is no line with $line"
done

! TESTS_RUN=0 "$source/tools/gpu/test.sh" "$here/bin" reduction >"$here/said" 2>&1 || fail "a program that runs no test has passed"
grep -q "^1 passed, 3 failed" "$here/said" || fail "a program that runs no test has passed"
! "$source/tools/gpu/test.sh" "$here/bin" kernels >"$here/said" 2>&1 || fail "a part that is none has passed"
