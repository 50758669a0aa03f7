#!/bin/sh
# bench.sh [BIN [PART...]]: the figures of docs/gpu.md on this machine's first GPU, against PyTorch in the same run. The machine should
# have nothing else to do. Parts, each within ten minutes: speed (tokens a second and MFU of a 124M GPT in bf16, against PyTorch eager and
# compiled, each also with deterministic algorithms, as Surefoot always has them; the snapshot's stall), copies (a snapshot's against a
# plain pinned copy), recovery (from a SIGKILL, by phase). None named: all. OUT=FOLDER keeps what the runs have said there. SMALL=1 tries
# the script out on a small model (with DEVICE=cpu: on the processor).
set -u
here=$(cd "$(dirname "$0")" && pwd)
all="speed copies recovery"
. "$here/lib.sh"
limit=${LIMIT:-150}  # seconds, for each run
failed=0
# run TITLE COMMAND...: shows its output, or, where it fails, the end of all that it has said: that costs its own line only.
run() {
  title=$1 status=0
  shift
  "$@" >"$work/out" 2>"$work/err" || status=$?
  { echo "=== $title: $status"; cat "$work/out" "$work/err"; } >>"$log"
  if [ $status = 0 ]; then
    cat "$work/out"
  else
    failed=1
    echo "FAILED  $title: $status"
    cat "$work/out" "$work/err" | tail -n 40
  fi
}
layers=12 heads=12 width=768 block=1024 vocabulary=50304 micro_batch=16 micro_batches=4 steps=40 precision=bf16 device=cuda
if [ -n "${SMALL:-}" ]; then
  layers=2 heads=2 width=64 block=64 vocabulary=1000 micro_batch=4 micro_batches=2 steps=30 precision=${PRECISION:-bf16} device=${DEVICE:-cuda}
fi
batch=$((micro_batch * micro_batches))
"$python" -c 'import numpy, sys; numpy.random.default_rng(1).integers(0, min(50257, int(sys.argv[2])), 4_000_000, dtype="uint16").tofile(sys.argv[1])' "$work/tokens" $vocabulary
cat >"$work/job.yaml" <<END
name: gpt-124m
model: {kind: gpt, n_layer: $layers, n_head: $heads, n_embd: $width, block_size: $block, vocab_size: $vocabulary}
data: {kind: tokens, path: tokens}
train:
  max_steps: $steps
  global_batch_size: $batch
  micro_batch_size: $micro_batch
  optimizer: {kind: adamw, lr: 6e-4, betas: [0.9, 0.95], weight_decay: 0.1}
  grad_clip: 1.0
  precision: $precision
resources: {device: cuda, devices: ["0"]}
checkpoint: {interval: 1h}
recovery: {backoff: 10ms}
END

# A snapshot of every step lies in shared memory, three at a time; a container may have little.
arena=""
if [ "$(df -Pm /dev/shm | awk 'END {print $4}')" -lt 8000 ]; then
  arena="$work/arena"
  mkdir "$arena"
  mount -t tmpfs -o size=16g tmpfs "$arena" && trap 'umount -l "$arena"; rm -rf "$work"' EXIT
fi
ours() {  # ours TAG ARGUMENTS...
  tag=$1
  shift
  train "$limit" "$work/job.yaml" "$work/$tag" ${arena:+--set "checkpoint.arena=$arena"} "$@" >"$work/$tag.out" 2>&1 || {
    cat "$work/$tag.out"
    return 1
  }
  cat "$work/$tag.out" >>"$log"
}
speed() {  # a JSON line of the steps' times and the stall behind them, without the first ten; and what the job itself says
  ours "$1" || return 1
  grep "^  speed" "$work/$1.out"
  "$python" - "$work/$1/metrics/metrics.jsonl" $((batch * block)) <<'END'
import json, statistics, sys
steps = [l for l in map(json.loads, open(sys.argv[1])) if l["kind"] == "train"][10:]
seconds = [sum(l["phases"].values()) for l in steps]
phases = {phase: statistics.median(l["phases"].get(phase, 0) for l in steps) for phase in steps[0]["phases"]}
print(json.dumps({"mode": "surefoot", "tokens_per_second": int(sys.argv[2]) / statistics.median(seconds),
                  "step_seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
                  "phases": phases, "mfu": statistics.median(l.get("mfu", 0) for l in steps), "loss": steps[-1]["loss"]}))
END
}
peer() {
  timeout --kill-after=10 "$limit" "$python" "$here/pytorch_gpt.py" --tokens "$work/tokens" --layers $layers --heads $heads --width $width \
    --block $block --vocabulary $vocabulary --micro-batch $micro_batch --micro-batches $micro_batches --device $device --mode "$@"
}
compare() {  # of what was measured until now
  "$python" - "$log" <<'END'
import json, statistics, sys
rounds = {}
for line in open(sys.argv[1]):
    if line.startswith('{"mode"'):
        entry = json.loads(line)
        rounds.setdefault(entry["mode"], []).append(entry)
mean = lambda mode, key: statistics.mean(entry[key] for entry in rounds[mode])
for mode in rounds:
    line = f"{mode:23} {mean(mode, 'tokens_per_second'):10.0f} tokens/s"
    if "surefoot" in rounds:
        ratio = mean("surefoot", "tokens_per_second") / mean(mode, "tokens_per_second")
        line += f"   MFU {mean('surefoot', 'mfu') / ratio:6.1%}   surefoot / this {ratio:.3f}"
    print(line)
END
}

if part speed; then
  # In turn, so that a clock that throttles meets all alike.
  for round in 1 2; do
    run "surefoot" speed "round-$round"
    for mode in "eager" "eager --deterministic" "compiled" "compiled --deterministic"; do
      # shellcheck disable=SC2086  # two words
      run "PyTorch $mode" peer $mode
    done
    run "the ratios after round $round" compare
  done
fi

if part copies; then
  run "copies" timeout --kill-after=10 "$limit" "$bin/snapshot_copy_bench"
fi

if part recovery; then
  recovery() {
    ours recovery --set train.max_steps=30 --fault kill:rank=0,step=10 --fault kill:rank=0,step=20,phase=update || return 1
    grep -E "back at work|steps lost" "$work/recovery.out"
  }
  run "recovery" recovery
fi
exit $failed
