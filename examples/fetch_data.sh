#!/bin/sh
# Fetches the data of the examples from Debian's packages, without installing them. What is there already is left alone.
#   fetch_data.sh [dictionary-gpt] [fashion-mnist]      without arguments: all
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
scratch=""
trap 'if [ -n "$scratch" ]; then rm -rf "$scratch"; fi' EXIT

# unpack PACKAGE: downloads it and leaves its files in $scratch/root
unpack() {
  if [ -n "$scratch" ]; then rm -rf "$scratch"; fi
  scratch="$(mktemp -d)"
  chmod 755 "$scratch"
  echo "fetching the Debian package $1"
  if ! (cd "$scratch" && apt-get download -qq "$1" 2>/dev/null); then
    as_root=""
    [ "$(id -u)" = 0 ] || as_root="sudo"
    $as_root apt-get update -qq
    (cd "$scratch" && apt-get download -qq "$1")
  fi
  dpkg-deb -x "$scratch/$1"_*.deb "$scratch/root"
}

[ $# -gt 0 ] || set -- dictionary-gpt fashion-mnist
for example in "$@"; do
  data="$here/$example/data"
  case "$example" in
    dictionary-gpt)
      [ ! -s "$data/dictionary.txt" ] || continue
      unpack dict-gcide
      mkdir -p "$data"
      gunzip -c -S .dz "$scratch/root/usr/share/dictd/gcide.dict.dz" > "$data/dictionary.txt.part"
      mv "$data/dictionary.txt.part" "$data/dictionary.txt" ;;
    fashion-mnist)
      [ ! -s "$data/train-images-idx3-ubyte.gz" ] || continue
      unpack dataset-fashion-mnist
      mkdir -p "$data.part"
      cp "$scratch"/root/usr/share/datasets/fashion-mnist/*.gz "$data.part/"
      rm -rf "$data"
      mv "$data.part" "$data" ;;
    *) echo "fetch_data.sh: no such example with data: $example" >&2; exit 64 ;;
  esac
done
