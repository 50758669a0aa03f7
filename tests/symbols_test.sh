#!/bin/sh
# symbols_test.sh WORKER: who finds whose symbols in a worker with the libtorch of a PyTorch, which brings along what is there already.
# - Protobuf: one of 3.13 is inside of libtorch_cpu, the system's is 3.21, and neither knows the other's objects. Fails when a symbol of
#   google::protobuf that one side asks for is found on the other. (The standard library's templates over Protobuf's types are
#   shared like all weak symbols; they do not look inside.)
# - the C++ library: fails when somebody else finds in libtorch what libstdc++ has (cmake/torch.cmake).
# All symbols are bound, in a process that builds a model.
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
nm -D --defined-only "$(awk '$2 ~ /\/libstdc[+][+]/ {print $2; exit}' "$here/bound")" | sed 's/.* //; s/@.*//' >"$here/standard"
awk '
  function of_torch(file) { return file ~ /\/lib(torch|c10|caffe2)[^\/]*$/ }
  NR == FNR { standard[$1]; next }
  { all++ }
  $3 ~ /^_Z(T[VIST]|GVZ?|Z)?N[VKRO]*6google8protobuf/ {
    protobuf++
    if (of_torch($1) != of_torch($2)) { print $1 " takes " $3 " from " $2; bad++ }
  }
  $3 in standard {
    std++
    if (!of_torch($1) && of_torch($2)) { print $1 " takes " $3 " from " $2; bad++ }
  }
  END {
    print all " symbols bound, " protobuf + 0 " of them of Protobuf, " std + 0 " of the C++ library, " bad + 0 " wrong"
    exit bad > 0 || all < 10000 || protobuf < 100 || std < 1000
  }' "$here/standard" "$here/bound"
