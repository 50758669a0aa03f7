#!/bin/sh
# bench.sh [BIN [PART...]]: the figures of docs/gpu.md on this machine's first GPU, against PyTorch in the same run. The machine should
# have nothing else to do. Parts, each within ten minutes: speed (tokens a second and MFU of a 124M GPT in bf16, against PyTorch eager,
# deterministic eager and compiled; the snapshot's stall), copies (a snapshot's against a plain pinned copy), recovery (from a SIGKILL,
# by phase). None named: all. SMALL=1 tries the script out on a small model (with DEVICE=cpu: on the processor).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "${1:-$here/../bin}" && pwd)
[ $# = 0 ] || shift
parts=$*
. "$here/lib.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
limit=300  # seconds, for each run
layers=12 heads=12 width=768 block=1024 vocabulary=50304 micro_batch=16 micro_batches=4 steps=40 precision=bf16 device=cuda
if [ -n "${SMALL:-}" ]; then
  layers=2 heads=2 width=64 block=64 micro_batch=4 micro_batches=2 steps=30 precision=${PRECISION:-bf16} device=${DEVICE:-cuda}
fi
batch=$((micro_batch * micro_batches))
"$python" -c 'import numpy, sys; numpy.random.default_rng(1).integers(0, 50257, 4_000_000, dtype="uint16").tofile(sys.argv[1])' "$work/tokens"
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

ours() {  # a JSON line of the steps' times and the stall behind them, without the first ten; and what the job itself says
  timeout $limit "$bin/surefoot" run "$work/job.yaml" --dir "$work/run-$1" >"$work/run-$1.out" 2>&1 || { cat "$work/run-$1.out"; return 1; }
  grep -E "^  (speed|time|peak)|MFU" "$work/run-$1.out" | tail -4 || true
  "$python" - "$work/run-$1/metrics/metrics.jsonl" $((batch * block)) <<'END'
import json, statistics, sys
steps = [l for l in map(json.loads, open(sys.argv[1])) if l["kind"] == "train"][10:]
median = lambda values: statistics.median(list(values))
seconds = median(sum(l["phases"].values()) for l in steps)
print(json.dumps({"mode": "surefoot", "tokens_per_second": int(sys.argv[2]) / seconds,
                  "step_seconds": {"median": seconds, **{p: median(l["phases"].get(p, 0) for l in steps) for p in steps[0]["phases"]}},
                  "mfu": steps[-1].get("mfu"), "loss": steps[-1]["loss"]}))
END
}
peer() {
  timeout $limit "$python" "$here/pytorch_gpt.py" --tokens "$work/tokens" --layers $layers --heads $heads --width $width --block $block \
    --vocabulary $vocabulary --micro-batch $micro_batch --micro-batches $micro_batches --device $device "$@"
}

if part speed; then
  # In turn, so that a clock that throttles meets all alike. One that fails is said, and costs its own line only.
  for round in 1 2; do
    ours $round >"$work/out" 2>&1 || echo "surefoot: failed"
    tee -a "$work/figures" <"$work/out"
    for mode in "eager" "eager --deterministic" "compiled"; do
      # shellcheck disable=SC2086  # two words
      peer --mode $mode >"$work/out" 2>"$work/err" || { echo "PyTorch, $mode: failed"; tail -5 "$work/err"; }
      tee -a "$work/figures" <"$work/out"
    done
  done
  "$python" - "$work/figures" <<'END'
import json, statistics, sys
speeds = {}
for line in open(sys.argv[1]):
    if line.startswith("{"):
        entry = json.loads(line)
        speeds.setdefault(entry["mode"], []).append(entry["tokens_per_second"])
own = statistics.mean(speeds["surefoot"])
for mode, values in speeds.items():
    print(f"{mode:22} {statistics.mean(values):12.0f} tokens/s   surefoot / {mode}: {own / statistics.mean(values):.3f}")
END
fi

if part copies; then
  timeout $limit "$bin/snapshot_copy_bench"
fi

if part recovery; then
  # A restart only: what a worker and all of them cost, from SIGKILL to the next finished step.
  timeout $limit "$bin/surefoot" run "$work/job.yaml" --dir "$work/recovery" --set train.max_steps=30 \
    --fault kill:rank=0,step=10 --fault kill:rank=0,step=20,phase=update >"$work/recovery.out" 2>&1 || { cat "$work/recovery.out"; exit 1; }
  grep -E "back at work|steps lost" "$work/recovery.out"
fi
