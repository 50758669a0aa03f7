#!/bin/sh
# In a bundle's bin/ (tools/make_bundle.sh), under the name of a program of its libexec/: runs it, in this very process, with the bundle's
# Open MPI, whose libraries have paths of their own in them and do not look where the programs do.
# One that was built for a PyTorch gets that one's libraries, too: of the PyTorch of SUREFOOT_PYTHON, or of the first python3 that has the
# right one; PyTorch itself is not imported, which would take seconds.
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
name=$(basename "$0")
built_for="@BUILT_FOR@"
look='
import glob, importlib.util, os, sys
found = importlib.util.find_spec("torch")
if found is None or found.origin is None:
    sys.exit("has no PyTorch")
torch = os.path.dirname(found.origin)
version = {}
exec(open(os.path.join(torch, "version.py")).read(), version)
def text(pytorch, cuda):
    return "PyTorch {}.{} ".format(*pytorch.split(".")) + ("with CUDA " + cuda.split(".")[0] if cuda else "without CUDA")
has = text(version["__version__"], version["cuda"])
wanted = text(*sys.argv[1:])
if has != wanted:
    sys.exit("has " + has + ", this was built for " + wanted)
nvidia = importlib.util.find_spec("nvidia")
roots = nvidia.submodule_search_locations if nvidia else []
print(":".join([os.path.join(torch, "lib")] + sorted(d for r in roots for d in glob.glob(os.path.join(r, "*", "lib")))))
'
if [ -z "$built_for" ]; then
  set -- -- "$@"
elif [ -n "${SUREFOOT_PYTHON:-}" ]; then
  set -- "$SUREFOOT_PYTHON" -- "$@"
else
  set -- python3 /opt/conda/bin/python3 /usr/local/bin/python3 /usr/bin/python3 -- "$@"
fi
folders="" said=""
while [ "$1" != -- ]; do
  if [ -z "$folders" ] && ! command -v "$1" >/dev/null 2>&1; then
    said="$said; there is no $1"
  elif [ -z "$folders" ]; then
    # shellcheck disable=SC2086  # two words
    if answer=$("$1" -c "$look" $built_for 2>&1); then
      folders=$answer
    else
      said="$said; $1 $(echo "$answer" | tail -n 1)"
    fi
  fi
  shift
done
shift
if [ -n "$built_for" ] && [ -z "$folders" ]; then
  echo "$name: no PyTorch to run with$said (SUREFOOT_PYTHON names another Python)" >&2
  exit 66
fi
export LD_LIBRARY_PATH="${folders:+$folders:}$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export OPAL_PREFIX="$here/openmpi" OPAL_BINDIR="$here/bin" OPAL_LIBDIR="$here/lib" OPAL_PKGLIBDIR="$here/openmpi/plugins" \
  OPAL_DATADIR="$here/openmpi/share" OPAL_PKGDATADIR="$here/openmpi/share/openmpi" OPAL_SYSCONFDIR="$here/openmpi/etc"
export PMIX_PREFIX="$here/openmpi" PMIX_LIBDIR="$here/openmpi/pmix" PMIX_PKGLIBDIR="$here/openmpi/pmix/plugins"
# Without ssh Open MPI would not even start what stays on this machine; any program that is there does. (Surefoot names its own.)
command -v ssh >/dev/null 2>&1 || export OMPI_MCA_plm_rsh_agent=/bin/sh
# For surefoot doctor: which libraries that finds. From here on every program would only name its own.
[ -z "${SUREFOOT_LIST_LIBRARIES:-}" ] || export LD_TRACE_LOADED_OBJECTS=1
exec "$here/libexec/$name" "$@"
