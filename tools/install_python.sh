#!/bin/sh
# Makes build/python, a virtual environment with tools/requirements.txt. When it stands there as wanted, nothing is done and no network is used.
set -eu
cd "$(dirname "$0")/.."
wanted=tools/requirements.txt
done_mark=build/python/requirements.txt
cmp -s "$wanted" "$done_mark" && exit 0
echo "installing Python packages into build/python"
rm -rf build/python
mkdir -p build
/usr/bin/python3 -m venv build/python
build/python/bin/python -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
cp "$wanted" "$done_mark"
