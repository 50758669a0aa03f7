#!/bin/sh
# What `make run` shows: a GPT learns, a worker is killed on the way, the job goes on from the very step, and a screen says what it cost.
#   demo.sh [arguments of `surefoot run`]      e.g. demo.sh --set train.max_steps=50 --fault random:5
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
"$here/../fetch_data.sh" dictionary-gpt
[ $# -gt 0 ] || set -- --fault kill:rank=1,step=150,phase=update
exec "$here/../../build/release/bin/surefoot" run "$here/job.yaml" --fresh "$@"
