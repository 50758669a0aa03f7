#!/bin/sh
# make_bundle.sh BIN ARCHIVE: Surefoot's programs of BIN with all that a bare machine lacks, for resources.bundle.
#   bin/        the programs, and orted and mpirun as small scripts that know where they are
#   lib/        the shared libraries they need, but glibc's and the GPU driver's: those are the machine's own
#   openmpi/    Open MPI's and PMIx's programs, plugins and help files
#   bundle.txt  what is in it: SHA-256 and name
# The programs find lib/ by themselves ($ORIGIN/../lib). Plugins for fabrics are left out: their libraries belong to
# drivers, and Surefoot uses TCP and shared memory.
set -eu
bin=$(cd "$1" && pwd)
archive=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/lib" "$root/openmpi/bin" "$root/openmpi/share" "$root/openmpi/pmix"

for program in surefoot surefoot-node surefoot-worker surefoot-rsh surefoot-reduction; do
  cp "$bin/$program" "$root/bin/"
done

path_of() { ompi_info --path "$1" --parsable | cut -d: -f3; }
plugins=$(path_of pkglibdir)
cp "$(command -v orted)" "$root/openmpi/bin/orted"
cp -L "$(command -v mpirun)" "$root/openmpi/bin/mpirun"
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
for file in $(find "$root/bin" "$root/openmpi" -type f); do
  if is_elf "$file"; then ldd "$file"; fi
done >"$root/needs"
# Through files: a failure within a pipeline would be lost.
awk '/not found/ {print "a library is missing: " $1 > "/dev/stderr"; missing = 1}
     $2 == "=>" && $3 ~ /^\// {print $1, $3} END {exit missing}' "$root/needs" >"$root/libraries"
while read -r name path; do
  case $name in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | libutil.so* | libanl.so* | \
      libmvec.so* | libnss_* | libcuda* | libcublas* | libcudnn* | libcufft* | libcupti* | libcurand* | \
      libcusolver* | libcusparse* | libnvidia* | libnvrtc* | libnvToolsExt* | libnvJitLink* | libnccl*) ;;
    *) [ -e "$root/lib/$name" ] || cp -L "$path" "$root/lib/$name" ;;
  esac
done <"$root/libraries"

for program in orted mpirun; do
  cat >"$root/bin/$program" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export OPAL_PREFIX="$here/openmpi" OPAL_BINDIR="$here/bin" OPAL_LIBDIR="$here/lib" OPAL_PKGLIBDIR="$here/openmpi/plugins" \
  OPAL_DATADIR="$here/openmpi/share" OPAL_PKGDATADIR="$here/openmpi/share/openmpi" OPAL_SYSCONFDIR="$here/openmpi/etc"
export PMIX_PREFIX="$here/openmpi" PMIX_LIBDIR="$here/openmpi/pmix" PMIX_PKGLIBDIR="$here/openmpi/pmix/plugins"
exec "$here/openmpi/bin/$(basename "$0")" "$@"
END
  chmod 755 "$root/bin/$program"
done

(cd "$root" && find bin lib openmpi -type f | sort | xargs sha256sum >bundle.txt)
# The same content gives the same archive, and so the same folder on the machines.
tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - bin lib openmpi bundle.txt |
  gzip -1 -n >"$archive.new"
mv "$archive.new" "$archive"
echo "$archive: $(wc -l <"$root/bundle.txt") files, $(($(stat -c %s "$archive") / 1048576)) MiB"
