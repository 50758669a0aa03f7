#!/bin/sh
# In a bundle's bin/ (tools/make_bundle.sh), under the name of a program of its libexec/: runs it, in this very process, with the libraries of
# a PyTorch on this machine, which has to be the one it was built for. The PyTorch is that of SUREFOOT_PYTHON, or of the first python3 that has
# one; PyTorch itself is not imported, which would take seconds.
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
look='
import glob, importlib.util, os, sys
found = importlib.util.find_spec("torch")
if found is None or found.origin is None:
    sys.exit("has no PyTorch")
torch = os.path.dirname(found.origin)
version = {}
exec(open(os.path.join(torch, "version.py")).read(), version)
has = version["__version__"].split("+")[0].split(".")[:2], str(version["cuda"]).split(".")[0]
wants = sys.argv[1].split(".")[:2], sys.argv[2].split(".")[0]
if has != wants:
    text = "PyTorch {}.{} with CUDA {}"
    sys.exit("has " + text.format(*has[0], has[1]) + ", this was built for " + text.format(*wants[0], wants[1]))
nvidia = importlib.util.find_spec("nvidia")
roots = nvidia.submodule_search_locations if nvidia else []
print(":".join([os.path.join(torch, "lib")] + sorted(d for r in roots for d in glob.glob(os.path.join(r, "*", "lib")))))
'
if [ -n "${SUREFOOT_PYTHON:-}" ]; then
  set -- "$SUREFOOT_PYTHON" -- "$@"
else
  set -- python3 /opt/conda/bin/python3 /usr/local/bin/python3 /usr/bin/python3 -- "$@"
fi
folders="" said=""
while [ "$1" != -- ]; do
  if [ -z "$folders" ] && command -v "$1" >/dev/null 2>&1; then
    if answer=$("$1" -c "$look" @BUILT_FOR@ 2>&1); then
      folders=$answer
    else
      said="$said; $1 $(echo "$answer" | tail -n 1)"
    fi
  fi
  shift
done
shift
if [ -z "$folders" ]; then
  echo "$(basename "$0"): no PyTorch to run with${said:-; there is no python3} (SUREFOOT_PYTHON names another Python)" >&2
  exit 66
fi
export LD_LIBRARY_PATH="$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# For surefoot doctor: which libraries that finds.
[ -z "${SUREFOOT_LIST_LIBRARIES:-}" ] || export LD_TRACE_LOADED_OBJECTS=1
exec "$here/libexec/$(basename "$0")" "$@"
