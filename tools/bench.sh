#!/bin/sh
# Every benchmark, or those named: reduction snapshot step upload checkpoint s3 recovery fleet fashion gpt. Comparisons are ratios, interleaved within one run.
# The machine should have nothing else to do.
set -eu
cd "$(dirname "$0")/.."
bin=build/release/bin
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
as_root=""
[ "$(id -u)" != 0 ] || as_root="--allow-run-as-root"
[ $# -gt 0 ] || set -- reduction snapshot step upload checkpoint s3 recovery fleet fashion gpt

for benchmark in "$@"; do
  echo "=== $benchmark"
  case "$benchmark" in
    reduction)  # 64 MiB of floats on 2 and 4 ranks, against MPI_Allreduce: as it comes, and with its temporary memory kept
      for ranks in 2 4; do
        for keep in "" "-x MALLOC_MMAP_THRESHOLD_=1073741824 -x MALLOC_TRIM_THRESHOLD_=4294967296 -x MALLOC_TOP_PAD_=268435456"; do
          [ -z "$keep" ] || echo "MPI_Allreduce's temporary memory is kept:"
          mpirun $as_root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl self,vader,tcp \
            $keep -np "$ranks" "$bin/reduction_bench"
        done
      done ;;
    snapshot)   # digests and copies of 128 MiB against memcpy
      "$bin/snapshot_bench" ;;
    checkpoint) # writing and restoring through a file store against write + fsync and plain reading
      "$bin/checkpoint_bench" ;;
    s3)         # 1 GiB through the S3 store against rclone copy, to the same SeaweedFS on this machine
      tools/install_python.sh
      "$bin/s3_bench" --folder "$work" ;;
    recovery)   # SIGKILL of a worker to the next finished step, by phase; five times
      examples/fetch_data.sh dictionary-gpt
      "$bin/surefoot" run examples/dictionary-gpt/job.yaml --dir "$work/recovery" --set train.max_steps=60 --set train.eval_every=0 \
        --fault kill:rank=0,step=10 --fault kill:rank=1,step=20,phase=update --fault kill:rank=0,step=30,phase=reduction \
        --fault kill:rank=1,step=40,phase=snapshot --fault kill:rank=0,step=50,phase=data | grep -E "back at work|steps lost" ;;
    fleet)      # a machine's loss, and a notice, to the next finished step, by phase; five times each, on three machines of namespaces
      tools/install_packages.sh spot
      tools/bench_fleet.sh 5 || echo "no figure: see above" ;;
    fashion)    # test accuracy after five epochs or so
      examples/fetch_data.sh fashion-mnist
      "$bin/surefoot" run examples/fashion-mnist/job.yaml --dir "$work/fashion" --set train.eval_batches=0 | grep -E "held out|time  |speed" ;;
    step)       # whole steps with a snapshot each and without, 125 MiB of state, one thread
      "$bin/step_bench" ;;
    upload)     # step times in the 30 s from each upload's start against the 30 s after them, in one run; 125 MiB of state
      examples/fetch_data.sh dictionary-gpt
      "$bin/surefoot" run examples/dictionary-gpt/job.yaml --dir "$work/upload" --set resources.workers_per_node=1 \
        --set 'model={kind: gpt, n_layer: 6, n_head: 6, n_embd: 384, block_size: 128}' --set 'train.schedule={kind: constant}' \
        --set train.global_batch_size=4 --set train.eval_every=0 --set checkpoint.interval=60s --set train.max_steps=700 >/dev/null
      awk -F'[:,]' '/"kind":"train"/ {
          for (i = 1; i < NF; i++) { if ($i ~ /"time"/) time = $(i + 1) + 0; if ($i ~ /"checkpoint"/) checkpoint = $(i + 1) }
          took = time - last; last = time
          if (since > 0 && checkpoint != "true") { if (time - since <= 30) { with += took; n++ } else if (time - since <= 60) { without += took; m++ } }
          if (checkpoint == "true") since = time
        }
        END { printf "%d steps with an upload %.1f ms, %d without %.1f ms, ratio %.4f\n", n, 1e3 * with / n, m, 1e3 * without / m, with / n / (without / m) }' \
        "$work/upload/metrics/metrics.jsonl" ;;
    gpt)        # held-out loss over the steps
      examples/fetch_data.sh dictionary-gpt
      "$bin/surefoot" run examples/dictionary-gpt/job.yaml --dir "$work/gpt" | grep -E "held out|time  |the rest|speed" ;;
    *) echo "no such benchmark: $benchmark" >&2; exit 64 ;;
  esac
done
