#!/bin/sh
# make_bundle.sh BIN ARCHIVE: Surefoot's programs of BIN with all that a bare machine lacks, for resources.bundle.
#   bin/        the programs; for those in libexec/ small scripts of their names (tools/in_bundle.sh)
#   libexec/    what takes Open MPI, CUDA, NCCL or libtorch; orted and mpirun
#   lib/        the shared libraries they need, but glibc's and the GPU driver's: those are the machine's own
#   openmpi/    Open MPI's and PMIx's plugins and help files
#   gpu/        of build/cuda also: what shows that the machine's GPUs work (tools/gpu)
#   bundle.txt  what is in it: SHA-256 and name
# CUDA, NCCL and libtorch (5 GB) are those of the PyTorch on the machine, which the scripts look for.
# The programs find lib/ by themselves ($ORIGIN/../lib). Plugins for fabrics are left out: their libraries belong to
# drivers, and Surefoot uses TCP and shared memory.
set -eu
bin=$(cd "$1" && pwd)
archive=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/lib" "$root/libexec" "$root/openmpi/share" "$root/openmpi/pmix"

# Installed, they look into lib/ only, and no more into folders of this machine.
cmake --install "$bin/.." --prefix "$root" --component programs >/dev/null

path_of() { ompi_info --path "$1" --parsable | cut -d: -f3; }
plugins=$(path_of pkglibdir)
cp -L "$(command -v orted)" "$root/libexec/orted"
cp -L "$(command -v mpirun)" "$root/libexec/mpirun"
cp -rL "$(path_of pkgdatadir)" "$root/openmpi/share/openmpi"
cp -rL "$(path_of sysconfdir)" "$root/openmpi/etc"
mkdir "$root/openmpi/plugins"
for plugin in "$plugins"/*.so; do
  case $plugin in
    *ucx* | *ofi* | *psm* | *openib* | *ugni* | *portals* | *usnic* | *ucc* | *hcoll*) ;;
    *) cp -L "$plugin" "$root/openmpi/plugins/" ;;
  esac
done
# PMIx lies beside the library that Open MPI's plugin takes.
pmix=$(ldd "$plugins"/mca_pmix_*.so | awk '$1 ~ /^libpmix/ {print $3; exit}')
if [ -n "$pmix" ]; then
  pmix=$(dirname "$(readlink -f "$pmix")")
  if [ -d "$pmix/pmix" ]; then cp -rL "$pmix/pmix" "$root/openmpi/pmix/plugins"; fi
fi

is_elf() { [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]; }
{
  for program in "$root"/bin/*; do ldd "$bin/$(basename "$program")"; done
  for file in $(find "$root/libexec" "$root/openmpi" -type f); do
    if is_elf "$file"; then ldd "$file"; fi
  done
} >"$root/needs"
# Through files: a failure within a pipeline would be lost.
awk '/not found/ {print "a library is missing: " $1 > "/dev/stderr"; missing = 1}
     $2 == "=>" && $3 ~ /^\// {print $1, $3} END {exit missing}' "$root/needs" >"$root/libraries"
# The folder of PyTorch's packages: all that comes from there stays there (its OpenMP too, which is not the system's).
pytorch=$(awk '$1 == "libtorch_cuda.so" {sub("/torch/lib/[^/]*$", "", $2); print $2; exit}' "$root/libraries")
while read -r name path; do
  if [ -n "$pytorch" ]; then
    case $path in "$pytorch"/*) continue ;; esac
  fi
  case $name in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | libutil.so* | libanl.so* | \
      libmvec.so* | libnss_* | libcuda* | libcublas* | libcudnn* | libcufft* | libcupti* | libcurand* | \
      libcusolver* | libcusparse* | libcufile* | libnvidia* | libnvrtc* | libnvToolsExt* | libnvJitLink* | libnvshmem* | libnccl*) ;;
    *) [ -e "$root/lib/$name" ] || cp -L "$path" "$root/lib/$name" ;;
  esac
done <"$root/libraries"

here=$(cd "$(dirname "$0")" && pwd)
built_for=""
if [ -n "$pytorch" ]; then
  cp -r "$here/gpu" "$root/gpu"
  built_for=$(sed -n "s/^\(__version__\|cuda\)[^=]*= '\([0-9.]*\).*/\2/p" "$pytorch/torch/version.py" | tr '\n' ' ')
fi
script() {  # script PROGRAM BUILT_FOR
  sed "s/@BUILT_FOR@/${2% }/" "$here/in_bundle.sh" >"$root/bin/$1"
  chmod 755 "$root/bin/$1"
}
for program in "$root"/bin/*; do
  program=$(basename "$program")
  needs=$(ldd "$bin/$program")
  case $needs in *libmpi* | *libtorch* | *libcudart* | *libnccl*) ;; *) continue ;; esac
  mv "$root/bin/$program" "$root/libexec/$program"
  case $needs in *libtorch* | *libcudart* | *libnccl*) script "$program" "$built_for" ;; *) script "$program" "" ;; esac
done
for program in orted mpirun; do script "$program" ""; done
# Who starts another program looks for it beside itself.
for program in surefoot-node surefoot-rsh; do ln -s "../bin/$program" "$root/libexec/$program"; done

content="bin libexec lib openmpi"
[ -z "$pytorch" ] || content="$content gpu"
(cd "$root" && find $content -type f | sort | xargs sha256sum >bundle.txt)
# The same content gives the same archive, and so the same folder on the machines.
tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - $content bundle.txt |
  gzip -1 -n >"$archive.new"
mv "$archive.new" "$archive"
glibc=$(grep -rahoE "GLIBC_2\.[0-9]+" "$root/bin" "$root/libexec" "$root/lib" "$root/openmpi" | sort -Vu | tail -n 1)
echo "$archive: $(wc -l <"$root/bundle.txt") files, $(($(stat -c %s "$archive") / 1048576)) MiB, for machines with glibc ${glibc#GLIBC_} or later"
