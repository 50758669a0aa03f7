#!/bin/sh
# bench.sh [BIN]: the figures of docs/gpu.md on this machine's first GPU, against PyTorch in the same run: tokens a second and
# MFU of a 124M GPT in bf16 (eager, deterministic eager, compiled), the snapshot's stall and its copies against a plain pinned
# copy, and the recovery from a SIGKILL by phase. The machine should have nothing else to do.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "${1:-$here/../bin}" && pwd)
. "$here/lib.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -c 'import numpy, sys; numpy.random.default_rng(1).integers(0, 50257, 4_000_000, dtype="uint16").tofile(sys.argv[1])' "$work/tokens"
cat >"$work/job.yaml" <<END
name: gpt-124m
model: {kind: gpt, n_layer: 12, n_head: 12, n_embd: 768, block_size: 1024, vocab_size: 50304}
data: {kind: tokens, path: tokens}
train:
  max_steps: 40
  global_batch_size: 64
  micro_batch_size: 16
  optimizer: {kind: adamw, lr: 6e-4, betas: [0.9, 0.95], weight_decay: 0.1}
  grad_clip: 1.0
  precision: bf16
resources: {device: cuda, devices: ["0"]}
checkpoint: {interval: 1h}
recovery: {backoff: 10ms}
END
ours() {  # the steps' times and the stall behind them, without the first ten
  "$bin/surefoot" run "$work/job.yaml" --dir "$work/run-$1" >"$work/run-$1.out" 2>&1 || { cat "$work/run-$1.out"; exit 1; }
  grep -iE "mfu|speed" "$work/run-$1.out" | tail -3 || true
  "$python" - "$work/run-$1/metrics/metrics.jsonl" <<'END'
import json, statistics, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
steps = [l for l in lines if l["kind"] == "train"][10:]
total = statistics.median(sum(l["phases"].values()) for l in steps)
stall = statistics.median(l["phases"].get("snapshot", 0) for l in steps)
print(json.dumps({"mode": "surefoot", "tokens_per_second": 64 * 1024 / total, "step_seconds": {"median": total},
                  "snapshot_stall_seconds": stall, "loss": steps[-1]["loss"]}))
END
}
# In turn, so that a clock that throttles meets all alike.
for round in 1 2; do
  echo "--- round $round"
  ours $round | tee -a "$work/figures"
  "$python" "$here/pytorch_gpt.py" --tokens "$work/tokens" --mode eager | tee -a "$work/figures"
  "$python" "$here/pytorch_gpt.py" --tokens "$work/tokens" --mode eager --deterministic | tee -a "$work/figures"
  "$python" "$here/pytorch_gpt.py" --tokens "$work/tokens" --mode compiled | tee -a "$work/figures" ||
    echo "PyTorch cannot compile here (it needs a C compiler): not compared"
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
echo "--- snapshot copies against a plain pinned copy"
"$bin/snapshot_copy_bench"
echo "--- recovery: SIGKILL of a worker to the next finished step"
"$bin/surefoot" run "$work/job.yaml" --dir "$work/recovery" --set train.max_steps=30 \
  --fault kill:rank=0,step=10 --fault kill:rank=0,step=20,phase=update 2>&1 | grep -E "back at work|steps lost"
