#!/bin/sh
# test.sh [BIN [PART...]]: what only a GPU can show, from the programs in BIN (of a bundle, or build/cuda/bin). Needs a driver and a
# Python with PyTorch, nothing else; one GPU is enough. A line for each check as it ends, and "N passed, N failed" at the end.
# Parts, each within ten minutes: machine, device, reduction, sanitizer, jobs, kills. None named: all. OUT=FOLDER keeps what the checks
# have said there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
all="machine device reduction sanitizer jobs kills"
. "$here/lib.sh"
limit=${LIMIT:-150}  # seconds, for each check
passed=0 failed=0
check() {  # check NAME COMMAND...: its output is shown when it fails
  title=$1
  shift
  began=$(date +%s)
  status=0
  "$@" >"$work/output" 2>&1 || status=$?
  { echo "=== $title: $status"; cat "$work/output"; } >>"$log"
  if [ $status = 0 ]; then
    passed=$((passed + 1))
    echo "ok      $title ($(($(date +%s) - began)) s)"
  else
    failed=$((failed + 1))
    echo "FAILED  $title ($(($(date +%s) - began)) s)"
    tail -40 "$work/output"
  fi
}
# tests COMMAND...: a GoogleTest program, under something perhaps. One that has run no test has not passed.
tests() {
  timeout --kill-after=10 "$limit" "$@" >"$work/tests" 2>&1
  code=$?
  cat "$work/tests"
  [ $code = 0 ] && grep -q '^\[  PASSED  \] [1-9]' "$work/tests"
}

if part machine; then
  check "surefoot doctor finds nothing wrong" timeout "$limit" "$bin/surefoot" doctor
  cat "$work/output"
fi

if part device; then
  check "memory, update, loss, snapshots" tests "$bin/cuda_device_test"
fi

if part reduction; then
  for number in 1 2 4; do
    check "kernels, reduction and communicator on $number ranks of one GPU" tests "$here/ranks.sh" "$number" "$bin/nccl_test"
  done
  killed_peer() {
    timeout --kill-after=10 "$limit" "$here/ranks.sh" 2 --enable-recovery "$bin/nccl_test" --kill >"$work/killed" 2>&1
    cat "$work/killed"
    grep -q "rank 0 left in time" "$work/killed"
  }
  check "a rank whose peer is killed leaves in time" killed_peer
fi

if part sanitizer; then
  sanitizer=$(PATH="$PATH:/usr/local/cuda/bin" command -v compute-sanitizer) || sanitizer=""
  if [ -n "$sanitizer" ]; then
    sanitized() {  # one that has looked at nothing has not passed either
      tests "$@" && grep -q 'SUMMARY: 0 ' "$work/tests"
    }
    for tool in memcheck racecheck initcheck synccheck; do
      # Of our kernels only: NCCL's are not ours to judge. Calls of CUDA that fail, and are told to, are no finding.
      options="--tool $tool --target-processes all --kernel-name kns=surefoot --error-exitcode 9"
      [ $tool != memcheck ] || options="$options --report-api-errors no"
      # shellcheck disable=SC2086  # many words
      check "compute-sanitizer $tool: update, loss" sanitized "$sanitizer" $options "$bin/cuda_device_test" --gtest_filter='*DeviceContract*'
      # shellcheck disable=SC2086
      check "compute-sanitizer $tool: kernels of the reduction" sanitized "$here/ranks.sh" 1 "$sanitizer" $options \
        "$bin/nccl_test" --gtest_filter='Kernels.*:*Reduction*'
    done
  else
    failed=$((failed + 1))
    echo "FAILED  compute-sanitizer is not installed here (it comes with CUDA's toolkit)"
  fi
fi

# The same weights and state for any number of workers, and across kills.
job() {  # job NAME PRECISION MODEL [MORE KEYS OF train]
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
  ${4:-}
resources: {device: cuda, devices: ["0"]}
checkpoint: {interval: 2s}
recovery: {backoff: 10ms}
END
}
"$python" -c 'import random; random.seed(1); print(" ".join(str(random.randrange(1000)) for _ in range(60000)))' >"$work/text"
run() {  # run JOB TAG ARGUMENTS...: prints the two hashes
  job_name=$1 tag=$2
  shift 2
  train "$limit" "$work/$job_name.yaml" "$work/$job_name-$tag" --json "$@" >"$work/$job_name-$tag.out" 2>&1 || {
    cat "$work/$job_name-$tag.out"
    return 1
  }
  echo "$(text_of "$work/$job_name-$tag.out" weights_sha256) $(text_of "$work/$job_name-$tag.out" state_sha256)"
}
same() {  # same JOB TAG ARGUMENTS...: equal to that of one worker, which runs once
  [ -s "$work/$1.hashes" ] || run "$1" reference --set resources.workers_per_node=1 >"$work/$1.hashes" || {
    cat "$work/$1.hashes"
    rm "$work/$1.hashes"
    return 1
  }
  expected=$(cat "$work/$1.hashes")
  found=$(run "$@") || { echo "$found"; return 1; }
  [ ${#expected} = 129 ] && [ "$expected" = "$found" ] || { echo "expected $expected, found $found"; return 1; }
}
gpt="{kind: gpt, n_layer: 2, n_head: 4, n_embd: 128, block_size: 64, dropout: 0.1}"
job gpt-fp32 fp32 "$gpt"
job gpt-tf32 tf32 "$gpt"
job gpt-bf16 bf16 "$gpt"
job gpt-half bf16 "$gpt" "communicate_in: bf16"
if part jobs; then
  for name in gpt-fp32 gpt-bf16; do
    check "$name: the same bits twice" same $name again --set resources.workers_per_node=1
    check "$name: the same bits with 2 workers" same $name two --set resources.workers_per_node=2
    check "$name: the same bits with 4 workers" same $name four --set resources.workers_per_node=4
  done
  check "gpt-tf32: the same bits with 2 workers" same gpt-tf32 two --set resources.workers_per_node=2
  check "gradients in bf16: the same bits with 4 workers" same gpt-half four --set resources.workers_per_node=4
fi

if part kills; then
  survived() {
    same "$@" || return 1
    attempts=$(text_of "$work/$1-$2.out" attempts)
    [ "$attempts" -ge 5 ] || { echo "only $attempts attempts: not every fault has struck"; return 1; }
  }
  for name in gpt-fp32 gpt-bf16; do
    check "$name: the same bits across kills of a worker, the service and all" survived $name killed --set resources.workers_per_node=2 \
      --fault kill:rank=1,step=5,phase=reduction --fault kill:service,step=9 --fault kill:all,step=12,phase=update \
      --fault kill:rank=0,step=20,phase=forward_backward --fault kill:rank=1,step=25,phase=snapshot
  done
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
