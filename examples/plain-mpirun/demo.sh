#!/bin/sh
# Surefoot's workers under mpirun alone: no supervisor, no database, the same promises. The first run is killed in step 30 by a fault that it injects into itself; the
# second resumes by itself where the first was.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
bin="$here/../../build/release/bin"
"$here/../fetch_data.sh" dictionary-gpt
as_root=""
[ "$(id -u)" != 0 ] || as_root="--allow-run-as-root"
run() {
  mpirun $as_root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "${WORKERS:-2}" \
    "$bin/surefoot-worker" "$here/../dictionary-gpt/job.yaml" --dir "$here/runs/plain" --set train.max_steps=50
}
echo "--- first run: worker 1 is killed in step 30"
SUREFOOT_FAULTS=kill:rank=1,step=30 run || echo "--- mpirun ended with $?"
echo "--- second run: resumes by itself"
run
sha256sum "$here/runs/plain/final/model.safetensors"
