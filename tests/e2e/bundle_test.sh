#!/bin/sh
# bundle_test.sh BIN SOURCE: the bundle works where the machine has glibc and a few tools, and neither Open MPI nor any
# library that Surefoot needs. In a mount namespace of its own, with another folder over the machine's libraries.
# Exit code 77: such a namespace cannot be made here.
set -eu
bin=$1 source=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
if ! unshare --mount true 2>/dev/null; then
  echo "SKIPPED: no mount namespace can be made here"
  exit 77
fi
"$source/tools/make_bundle.sh" "$bin" "$here/bundle.tar.gz"
mkdir "$here/bundle" "$here/bare" "$here/arena"
tar -xzf "$here/bundle.tar.gz" -C "$here/bundle"
(cd "$here/bundle" && sha256sum --check --quiet bundle.txt)

# For GPUs: where there is no PyTorch, or not the one it was built for, it says so.
if [ -d "$here/bundle/gpu" ]; then
  mkdir -p "$here/other/torch"
  echo "__version__ = '2.4.1+cpu'; cuda = None" >"$here/other/torch/version.py"
  : >"$here/other/torch/__init__.py"
  for python in /no/python "env PYTHONPATH=$here/other python3"; do
    printf '#!/bin/sh\nexec %s "$@"\n' "$python" >"$here/python"
    chmod 755 "$here/python"
    code=0
    SUREFOOT_PYTHON="$here/python" "$here/bundle/bin/surefoot-worker" "$here/job.yaml" 2>"$here/said" || code=$?
    cat "$here/said"
    [ $code = 66 ] || { echo "it leaves with $code" && exit 1; }
  done
  grep -q "has PyTorch 2.4 without CUDA, this was built for PyTorch" "$here/said"
fi

libraries=$(dirname "$(ldconfig -p | awk '/libc.so.6 .*x86-64|libc.so.6 .*AArch64/ {print $NF; exit}')")
libraries=$(readlink -f "$libraries")
mkdir "$here/tools"
for tool in sh cat dirname basename readlink env mount; do ln -s "$(command -v $tool)" "$here/tools/$tool"; done
for tool in "$here"/tools/*; do ldd "$tool"; done |
  awk '$2 == "=>" {print $3} $1 ~ /^\// {print $1}' | sort -u >"$here/list"
for name in ld-linux-x86-64 ld-linux-aarch64 libc libm libpthread libdl librt libresolv libutil libmvec; do ls "$libraries/$name".so* 2>/dev/null; done >>"$here/list" || true
while read -r file; do cp -L "$file" "$here/bare/" 2>/dev/null || true; done <"$here/list"

cat >"$here/job.yaml" <<END
name: bundled
model: {kind: mlp, hidden: [8]}
data: {kind: synthetic, samples: 64}
train: {max_steps: 5, global_batch_size: 8, micro_batch_size: 4, optimizer: {kind: sgd, lr: 0.1}}
checkpoint: {arena: $here/arena}
END
cat >"$here/inside.sh" <<'END'
set -eu
mount --bind "$1/bare" "$2"
if mpirun --version 2>/dev/null; then
  echo "the machine's own Open MPI still works"
  exit 1
fi
# Not even ssh.
export PATH="$1/bundle/bin:$1/tools"
mpirun --version
surefoot --version
# Which asks the worker by itself, too.
surefoot run "$1/job.yaml" --dir "$1/supervised" --set resources.workers_per_node=2
mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2 --mca pml ob1 --mca btl self,vader,tcp \
  --mca orte_tmpdir_base "$1" --mca btl_vader_backing_directory "$1" surefoot-worker "$1/job.yaml" --dir "$1/run"
END
unshare --mount sh "$here/inside.sh" "$here" "$libraries"
cmp "$here/run/final/model.safetensors" "$here/supervised/final/model.safetensors"
# Its service ends by itself.
waited=0
while [ -n "$(ls "$here/arena")" ] && [ $waited -lt 600 ]; do
  sleep 0.1
  waited=$((waited + 1))
done
left=$(ls "$here/arena")
[ -z "$left" ] || { echo "the service has not ended: $left" && exit 1; }
echo "a bare machine has trained"
