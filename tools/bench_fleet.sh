#!/bin/sh
# From a machine's loss, and from a notice, to the next finished step, on three machines made of namespaces: bench_fleet.sh [times, 5].
# A line each: seconds from the loss or the notice itself to the next finished step, as the metrics have it; the goal; the supervisor's own account.
# Goals: a loss is seen after heartbeat_timeout, and 3 s and the step come on top of that; a notice is seen at once.
set -eu
times="${1:-5}"
root="$(cd "$(dirname "$0")/.." && pwd)"
bin="$root/build/release/bin"
cluster="bench-$$"
work="$(mktemp -d)"
log="$work/screen.log"
metrics="$work/run/metrics/metrics.jsonl"
heartbeat=5

on() { "$bin/surefoot-cluster" --cluster "$cluster" "$@" >/dev/null; }
trap 'on down 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
count() { grep -c -- "$1" "$log" || true; }
await() {  # what is waited for, and the command that says whether it has come
  what="$1"
  shift
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 3000 ] || [ -e "$work/over" ]; then
      echo "$what does not come:" >&2
      tail -n 20 "$log" >&2
      exit 1
    fi
    sleep 0.1
  done
}
said_more() { [ "$(count "$1")" -gt "$2" ]; }  # the screen has this more than $2 times
has_stepped() { [ "$(newest | cut -d' ' -f1)" = "$1" ]; }
# "ATTEMPT TIME SECONDS_A_STEP" of the newest finished step; and of the first of a later attempt than $1.
newest() { grep '"kind":"train"' "$metrics" | tail -n 1 | fields; }
first_after() {
  grep '"kind":"train"' "$metrics" | fields | awk -v old="$1" '$1 > old { print; exit }'
}
fields() { sed -n 's/.*"attempt":\([0-9]*\),.*"samples_per_second":\([0-9.e+]*\),.*"time":\([0-9.]*\).*/\1 \3 \2/p' | awk '{ print $1, $2, 48 / $3 }'; }
whole() {  # until all three machines take part and have finished a step
  await "a gang of 3" said_more "on 3 machines" "$1"
  attempt="$(sed -n 's/.*attempt \([0-9]*\): starting . workers on 3 machines.*/\1/p' "$log" | tail -n 1)"
  await "a step of attempt $attempt" has_stepped "$attempt"
  sleep 3  # so that the step's time is that of a running gang
}

"$bin/surefoot-cluster" --cluster "$cluster" up 4 --share "$root" --share "$work" >/dev/null
{
  "$bin/surefoot-cluster" --cluster "$cluster" exec host3 "$bin/surefoot" run "$root/examples/spot-cluster/job.yaml" --dir "$work/run" \
    --set 'resources.hosts=[host0, host1, host2]' --set train.max_steps=100000 --set "recovery.heartbeat_timeout=${heartbeat}s" \
    --set recovery.grow_after=1s >"$log" 2>&1 || :
  : >"$work/over"
} &
: >>"$log"
whole 0
measure() {  # name, what is done to host2, seconds beside the step that are the goal
  gangs="$(count "on 3 machines")"
  seen="$(count "back at work")"
  before="$(newest)"
  begin="$(date +%s.%N)"
  eval "$2"
  await "the next step" said_more "back at work" "$seen"
  after="$(first_after "${before%% *}")"
  said="$(grep "back at work" "$log" | sed -n "$((seen + 1))s/.*back at work after //p")"
  echo "$after" | awk -v name="$1" -v begin="$begin" -v base="$3" -v said="$said" -v step="${before##* }" \
    '{ printf "%-6s %6.2f s   goal %5.2f s   the supervisor says %s\n", name, $2 - begin, base + step, said }'
  on reboot host2  # also ends what is left of it
  whole "$gangs"
}
for _ in $(seq "$times"); do measure loss "on kill host2" "$((heartbeat + 3))"; done
for _ in $(seq "$times"); do measure notice "on exec host2 sh -c 'echo 60 >/run/surefoot-notice'" 3; done
awk '{ print "load of the machine:", $1, $2, $3 }' /proc/loadavg
