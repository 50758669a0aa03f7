#!/bin/sh
# test.sh [BIN]: what only a GPU can show, from the programs in BIN (of a bundle, or build/cuda/bin). Needs a driver and a
# Python with PyTorch, nothing else; one GPU is enough. A line for each check, and "N passed, N failed" at the end.
set -u
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "${1:-$here/../bin}" && pwd)
. "$here/lib.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() {  # check NAME COMMAND...: its output is shown when it fails
  name=$1
  shift
  if "$@" >"$work/output" 2>&1; then
    passed=$((passed + 1))
    echo "ok      $name"
  else
    failed=$((failed + 1))
    echo "FAILED  $name"
    tail -40 "$work/output"
  fi
}

check "kernels, reduction and communicator (1 rank)" "$bin/nccl_test"
for ranks in 2 4; do
  check "kernels, reduction and communicator ($ranks ranks on one GPU)" \
    mpirun $as_root --oversubscribe --bind-to none -np "$ranks" --mca pml ob1 --mca btl self,vader,tcp "$bin/nccl_test"
done
check "device: memory, update, snapshot" "$bin/cuda_device_test"
if command -v compute-sanitizer >/dev/null 2>&1; then
  for tool in memcheck racecheck initcheck; do
    check "compute-sanitizer $tool: device" compute-sanitizer --target-processes all --tool $tool --error-exitcode 9 "$bin/cuda_device_test" --gtest_filter='-*Elephant*:*MoreMemory*'
    check "compute-sanitizer $tool: reduction" compute-sanitizer --target-processes all --tool $tool --error-exitcode 9 "$bin/nccl_test"
  done
else
  echo "not run: compute-sanitizer is not installed here"
fi

# The same weights and state for any number of workers, and across kills.
job() {  # job NAME PRECISION MODEL
  cat >"$work/$1.yaml" <<END
name: $1
model: $3
data: {kind: text, path: text}
train:
  max_steps: 30
  global_batch_size: 16
  micro_batch_size: 2
  optimizer: {kind: adamw, lr: 1e-3, betas: [0.9, 0.95], weight_decay: 0.1}
  grad_clip: 1.0
  precision: $2
  eval_every: 10
  eval_batches: 4
resources: {device: cuda, devices: ["0"]}
checkpoint: {interval: 2s}
recovery: {backoff: 10ms}
END
}
"$python" -c 'import random; random.seed(1); print(" ".join(str(random.randrange(1000)) for _ in range(60000)))' >"$work/text"
run() {  # run JOB TAG ARGUMENTS...: prints the two hashes
  job_name=$1 tag=$2
  shift 2
  "$bin/surefoot" run "$work/$job_name.yaml" --dir "$work/$job_name-$tag" --json "$@" >"$work/$job_name-$tag.out" 2>&1 || {
    cat "$work/$job_name-$tag.out"
    return 1
  }
  echo "$(text_of "$work/$job_name-$tag.out" weights_sha256) $(text_of "$work/$job_name-$tag.out" state_sha256)"
}
same() {  # same JOB TAG ARGUMENTS...: equal to that of one worker
  expected=$(run "$1" reference --set resources.workers_per_node=1) || { echo "$expected"; return 1; }
  found=$(run "$@") || { echo "$found"; return 1; }
  [ ${#expected} -gt 100 ] && [ "$expected" = "$found" ] || { echo "expected $expected, found $found"; return 1; }
}
gpt="{kind: gpt, n_layer: 2, n_head: 4, n_embd: 128, block_size: 64, dropout: 0.1}"
job gpt-fp32 fp32 "$gpt"
job gpt-bf16 bf16 "$gpt"
for name in gpt-fp32 gpt-bf16; do
  check "$name: the same bits twice" same $name again --set resources.workers_per_node=1
  check "$name: the same bits with 2 workers" same $name two --set resources.workers_per_node=2
  check "$name: the same bits with 4 workers" same $name four --set resources.workers_per_node=4
  check "$name: the same bits across kills" same $name killed --set resources.workers_per_node=2 \
    --fault kill:rank=1,step=5,phase=reduction --fault kill:service,step=9 --fault kill:all,step=12,phase=update \
    --fault kill:rank=0,step=20,phase=forward_backward
done
sed 's/precision: bf16/precision: bf16\n  communicate_in: bf16/; s/name: gpt-bf16/name: gpt-half/' "$work/gpt-bf16.yaml" >"$work/gpt-half.yaml"
check "gradients in bf16: the same bits with 4 workers" same gpt-half four --set resources.workers_per_node=4

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
