#!/bin/sh
# Writes module.pt from make_module.cpp's program, then trains it with two workers.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
bin="$here/../../build/release/bin"
"$here/../fetch_data.sh" fashion-mnist
"$bin/surefoot-make-module" "$here/module.pt"
exec "$bin/surefoot" run "$here/job.yaml" "$@"
