# Shared by test.sh and bench.sh; sourced with [BIN [PART...]] as arguments, $here and $all (the parts there are) set.
bin=$(cd "${1:-$here/../bin}" && pwd) || exit 64
[ $# = 0 ] || shift
parts=${*:-$all}
for name in $parts; do
  case " $all " in *" $name "*) ;; *) echo "there is no part $name; there are: $all" >&2; exit 64 ;; esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What each step has said, whole; with OUT set it stays there.
log=${OUT:-$work}/$(basename "$0" .sh)-output.txt

"$bin/surefoot" --version || { echo "the programs do not start on this machine, which has $(getconf GNU_LIBC_VERSION)" >&2; exit 77; }
# Where a bundle's programs find their libraries, too.
python=${SUREFOOT_PYTHON:-python3}
"$python" - <<'END' || { echo "$python has no PyTorch that sees a GPU: set SUREFOOT_PYTHON" >&2; exit 77; }
import sys, torch
sys.exit(0 if torch.cuda.is_available() else 1)
END
"$python" -c 'import torch; p = torch.cuda.get_device_properties(0); print(f"GPU: {p.name}, {p.multi_processor_count} SMs; PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {torch.cuda.nccl.version()}, cuDNN {torch.backends.cudnn.version()}")' || true
nvidia-smi --query-gpu=driver_version,clocks.sm,power.limit,temperature.gpu --format=csv,noheader || true
echo "$(getconf GNU_LIBC_VERSION), $(uname -r), $(nproc) processors, $(df -h /dev/shm | awk 'END {print $4}') free in /dev/shm"

# The programs of a bundle ask the same Python.
export PATH="$bin:$PATH" SUREFOOT_PYTHON="$python" GTEST_COLOR=no NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
# part NAME: whether it was asked for.
part() {
  case " $parts " in
    *" $1 "*) echo "--- $1" ;;
    *) return 1 ;;
  esac
}

# train SECONDS JOB DIRECTORY ARGUMENTS...: a job in a directory of its own. One that fails says all that its ranks have said, and holds no GPU
# any more.
train() {
  seconds=$1 job=$2 directory=$3
  shift 3
  timeout --kill-after=10 "$seconds" "$bin/surefoot" run "$job" --dir "$directory" "$@" && return
  echo "surefoot run has left with $? (124, 137: not done after $seconds s)"
  timeout 30 "$bin/surefoot" cancel "$directory" || true
  tail -n 50 "$directory"/logs/*/* || true
  return 1
}

# text_of FILE KEY: the value of a text in the last JSON line of FILE.
text_of() {
  "$python" -c 'import json, sys
lines = [l for l in open(sys.argv[1]) if l.startswith("{")]
print(json.loads(lines[-1]).get(sys.argv[2], "") if lines else "")' "$1" "$2"
}
