#!/bin/sh
# small_job_test.sh BIN: the programs in BIN train a small GPT on the processor; two workers of which one is killed give the bits of one alone.
# For builds against another libtorch than the system's, in which the tests that say more are not built.
set -eu
bin=$1
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
seq 20000 >"$here/text"
cat >"$here/job.yaml" <<END
name: small
model: {kind: gpt, n_layer: 2, n_head: 2, n_embd: 32, block_size: 32, dropout: 0.1}
data: {kind: text, path: text}
train:
  max_steps: 30
  global_batch_size: 8
  micro_batch_size: 2
  optimizer: {kind: adamw, lr: 1e-3}
  grad_clip: 1.0
  eval_every: 10
  eval_batches: 2
checkpoint: {interval: 2s}
recovery: {backoff: 10ms}
END
run() {  # run TAG ARGUMENTS...: prints the hash of the weights and that of the state
  tag=$1
  shift
  "$bin/surefoot" run "$here/job.yaml" --dir "$here/$tag" --json "$@" >"$here/$tag.json" ||
    { cat "$here/$tag.json" "$here/$tag"/logs/*/* >&2; return 1; }
  for key in weights_sha256 state_sha256; do sed -n "s/.*\"$key\": *\"\([0-9a-f]*\)\".*/\1/p" "$here/$tag.json"; done
}
alone=$(run alone --set resources.workers_per_node=1)
killed=$(run killed --set resources.workers_per_node=2 --fault kill:rank=1,step=7,phase=reduction --fault kill:rank=0,step=19,phase=update)
echo "$alone"
[ ${#alone} -gt 128 ] || { echo "no hashes" >&2; exit 1; }
[ "$alone" = "$killed" ] || { echo "two workers, killed twice, give others: $killed" >&2; exit 1; }
