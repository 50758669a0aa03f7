#!/bin/sh
# Installs what is missing of the groups named as arguments (tools/packages.txt). Nothing missing: nothing is done and no network is used.
set -eu
list="$(dirname "$0")/packages.txt"
missing=""
for group in "$@"; do
  for package in $(awk -v group="$group" '$1 == group { print $2 }' "$list"); do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
  done
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
