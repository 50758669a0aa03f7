#!/bin/sh
# install_torch.sh: build/torch/bin/python is a Python with a PyTorch whose libtorch `make cuda` links. That of SUREFOOT_PYTHON; else
# python3's own where it fits; else a virtual environment is made, with PyTorch 2.11 and the CUDA libraries it brings (3 GB to
# load, 5 GB on disk). Nothing is done where it stands already.
set -eu
cd "$(dirname "$0")/.."
wanted="torch==2.11.0 numpy"
mark=build/torch/wanted

# fits PYTHON: says why not. Old wheels have another C++ ABI than Debian's libraries.
fits() {
  "$1" - <<'PYTHON'
import sys
try:
    import torch
except ImportError as error:
    sys.exit(str(error))
if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 7):
    sys.exit(f"its PyTorch is {torch.__version__}; 2.7 is the first that can be linked")
if torch.version.cuda is None:
    sys.exit(f"its PyTorch {torch.__version__} is one without CUDA")
if not torch.compiled_with_cxx11_abi():
    sys.exit(f"its PyTorch {torch.__version__} is built with the old C++ ABI")
PYTHON
}
# A script and not a link: a virtual environment is known by the folder that its Python is called from.
take() {
  rm -rf build/torch
  mkdir -p build/torch/bin
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$1" >build/torch/bin/python
  chmod 755 build/torch/bin/python
  echo "$1" >"$mark"
}

if [ -n "${SUREFOOT_PYTHON:-}" ]; then
  python=$(command -v "$SUREFOOT_PYTHON") || { echo "SUREFOOT_PYTHON: there is no $SUREFOOT_PYTHON" >&2; exit 66; }
  case $python in /*) ;; *) python="$PWD/$python" ;; esac
  if [ "$python" != "$PWD/build/torch/bin/python" ] && [ "$(cat "$mark" 2>/dev/null)" != "$python" ]; then
    fits "$python" || { echo "SUREFOOT_PYTHON=$SUREFOOT_PYTHON cannot be taken" >&2; exit 66; }
    take "$python"
  fi
elif case $(cat "$mark" 2>/dev/null) in "$wanted" | /*) ;; *) false ;; esac; then
  :
elif python=$(command -v python3) && fits "$python" 2>/dev/null; then
  take "$python"
else
  mkdir -p build
  free=$(df -Pk build | awk 'NR == 2 {print int($4 / 1048576)}')
  [ "$free" -ge 9 ] || { echo "PyTorch takes 9 GB while it is installed, there are $free" >&2; exit 66; }
  tools/install_packages.sh cuda
  echo "installing PyTorch into build/torch"
  rm -rf build/torch
  /usr/bin/python3 -m venv build/torch
  # shellcheck disable=SC2086  # two words
  build/torch/bin/python -m pip install --quiet --disable-pip-version-check $wanted
  echo "$wanted" >"$mark"
fi
build/torch/bin/python -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda)'
