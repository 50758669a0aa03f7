#!/bin/sh
# install_torch.sh: makes build/torch, a virtual environment with PyTorch 2.11 and the CUDA libraries it brings (5 GB), for
# `make cuda`. Nothing is done where it stands already. SUREFOOT_PYTHON names a Python that has a PyTorch (2.x) of its own:
# then build/torch only points there.
set -eu
cd "$(dirname "$0")/.."
wanted="torch==2.11.0 numpy"
mark=build/torch/wanted
if [ -n "${SUREFOOT_PYTHON:-}" ]; then
  mkdir -p build/torch/bin
  ln -sf "$(command -v "$SUREFOOT_PYTHON")" build/torch/bin/python
elif [ "$(cat "$mark" 2>/dev/null)" != "$wanted" ]; then
  echo "installing PyTorch into build/torch"
  rm -rf build/torch
  mkdir -p build
  python3 -m venv build/torch
  # shellcheck disable=SC2086  # two words
  build/torch/bin/python -m pip install --quiet --disable-pip-version-check $wanted
  echo "$wanted" >"$mark"
fi
build/torch/bin/python -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda)'
