#!/bin/sh
# Four machines made of namespaces on this one, a job over them, and a fifth for its supervisor; then machines are lost, told to go, and come back. About two minutes.
#   demo.sh [arguments of `surefoot run`]      e.g. demo.sh --set train.max_steps=800
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
bin="$root/build/release/bin"
cluster="spot-$$"
job="$here/runs/spot-cluster"
log="$here/runs/screen.log"
for program in surefoot surefoot-cluster; do
  [ -x "$bin/$program" ] || { echo "$bin/$program is not there: make build" >&2; exit 1; }
done

on() { "$bin/surefoot-cluster" --cluster "$cluster" "$@" >/dev/null; }
say() { printf '\n>>> %s\n\n' "$*"; }
count() { grep -c -- "$1" "$log" || true; }
# Until the job's screen has this once more than $2 times; false when the job is over first.
again() {
  while [ "$(count "$1")" -le "$2" ]; do
    [ ! -e "$log.over" ] || return 1
    sleep 0.2
  done
}
fewer() { say "the job was done before the rest could be shown; give it more steps: demo.sh --set train.max_steps=1000"; }

trap 'on down 2>/dev/null || true; rm -f "$log" "$log.over" "$log.done"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$here/runs"
rm -f "$log.over" "$log.done"
: >"$log"
if ! "$bin/surefoot-cluster" --cluster "$cluster" up 5 --share "$root"; then
  cat >&2 <<'TEXT'

This machine does not let us make machines of namespaces; the line above says why. They need root, Linux namespaces, /dev/net/tun and sshd:
  on a machine of your own    sudo examples/spot-cluster/demo.sh
  in a container              docker run --privileged --device /dev/net/tun ...
Nothing else in the project needs them but the tests that use such machines, which are skipped. The same job runs on real machines
that ssh reaches: surefoot run examples/spot-cluster/job.yaml --set 'resources.hosts=[a, b, c]'
TEXT
  exit 1
fi

say "four machines, host0 to host3; the supervisor runs on host4"
{
  "$bin/surefoot-cluster" --cluster "$cluster" exec host4 "$bin/surefoot" run "$here/job.yaml" --fresh --dir "$job" \
    --set 'resources.hosts=[host0, host1, host2, host3]' "$@" 2>&1 && : >"$log.done" || :
  : >"$log.over"
} | tee -a "$log" &
screen=$!

show() {
  again "starting 4 workers on 4 machines" 0 || return 1
  attempt="$(sed -n 's/.*attempt \([0-9]*\): starting 4 workers.*/\1/p' "$log" | head -n 1)"
  until grep -q "\"kind\":\"train\",\"attempt\":$attempt," "$job/metrics/metrics.jsonl" 2>/dev/null; do
    [ ! -e "$log.over" ] || return 1
    sleep 0.2
  done
  sleep 5
  say "host2 is switched off. Nobody is told: its silence must be noticed, heartbeat_timeout is 5 s"
  seen="$(count "back at work")"
  on kill host2
  again "back at work" "$seen" || return 1
  sleep 5
  say "host1 is told that it goes in 20 s, as a cloud would: all stop after the step in hand, the others go on without it"
  seen="$(count "back at work")"
  on exec host1 sh -c 'echo 20 >/run/surefoot-notice'
  again "back at work" "$seen" || return 1
  sleep 2
  say "host1 goes. The job does not need it any more"
  on kill host1
  sleep 3
  say "host2 is switched on again, with empty memory: it is looked at, filled with the newest step, and takes part"
  seen="$(count "back at work")"
  on reboot host2
  again "back at work" "$seen"
}
shown=yes
show || shown=no
wait "$screen"
[ -e "$log.done" ] || exit 1
[ $shown = yes ] || fewer
say "the same weights come from one worker alone: $bin/surefoot run $here/job.yaml --dir /tmp/alone"
