#!/bin/sh
# ranks.sh N ARGUMENTS...: under mpirun, of the bundle or of this machine. One rank too: by itself a program of a bundle does not find
# Open MPI's plugins.
number=$1
shift
as_root=""
[ "$(id -u)" != 0 ] || as_root="--allow-run-as-root"
# shellcheck disable=SC2086  # none or one word
exec mpirun $as_root --oversubscribe --bind-to none --mca pml ob1 --mca btl self,vader,tcp -np "$number" "$@"
