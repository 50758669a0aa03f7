#!/bin/sh
# symbols_test.sh WORKER: libtorch and the worker each have a Protobuf, of versions that do not know each other (PyTorch's is
# 3.13 and inside of libtorch_cpu, the system's is 3.21): fails when a symbol of google::protobuf that one of them asks for is found in
# the other, which would crash somewhere later. All symbols are bound, in a process that builds a model.
# (Instances of the standard library's templates over Protobuf's types are shared like all weak symbols; they do not look inside.)
set -eu
worker=$1
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cat >"$here/job.yaml" <<YAML
name: symbols
model: {kind: mlp, hidden: [8]}
data: {kind: synthetic, samples: 64}
train: {max_steps: 5, global_batch_size: 8, micro_batch_size: 4, optimizer: {kind: sgd, lr: 0.1}}
YAML
LD_BIND_NOW=1 LD_DEBUG=bindings LD_DEBUG_OUTPUT="$here/bindings" "$worker" "$here/job.yaml" --describe >"$here/described"
cat "$here"/bindings.* | sed -n "s/.*binding file \([^ ]*\) \[[0-9]*\] to \([^ ]*\) \[[0-9]*\]: [a-z]* symbol \`\([^']*\)'.*/\1 \2 \3/p" >"$here/bound"
awk '
  function of_torch(file) { return file ~ /\/lib(torch|c10|caffe2)[^\/]*$/ }
  { all++ }
  $3 !~ /^_Z(T[VIST]|GVZ?|Z)?N[VKRO]*6google8protobuf/ { next }
  { seen++ }
  of_torch($1) != of_torch($2) { print $1 " takes " $3 " from " $2; bad++ }
  END {
    print all " symbols bound, " seen + 0 " of them of Protobuf, " bad + 0 " across"
    exit bad > 0 || all < 10000 || seen < 100
  }' "$here/bound"
