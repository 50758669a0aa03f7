# Shared by test.sh and bench.sh; sourced, with $bin set.
# Where a bundle's programs find their libraries, too.
python=${SUREFOOT_PYTHON:-python3}
"$python" - <<'END' || { echo "$python has no PyTorch that sees a GPU: set SUREFOOT_PYTHON" >&2; exit 77; }
import sys, torch
sys.exit(0 if torch.cuda.is_available() else 1)
END
"$python" -c 'import torch; p = torch.cuda.get_device_properties(0); print(f"GPU: {p.name}, {p.multi_processor_count} SMs; PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {torch.cuda.nccl.version()}, cuDNN {torch.backends.cudnn.version()}")' || true
nvidia-smi --query-gpu=driver_version,clocks.sm,power.limit,temperature.gpu --format=csv,noheader || true

# The programs of a bundle ask the same Python.
export PATH="$bin:$PATH" SUREFOOT_PYTHON="$python" GTEST_COLOR=no
# part NAME: whether it was asked for, of $parts; none asked for: all of them.
part() {
  case " ${parts:-$1} " in
    *" $1 "*) echo "--- $1" ;;
    *) return 1 ;;
  esac
}

# text_of FILE KEY: the value of a text in the last JSON line of FILE.
text_of() {
  "$python" -c 'import json, sys
lines = [l for l in open(sys.argv[1]) if l.startswith("{")]
print(json.loads(lines[-1]).get(sys.argv[2], "") if lines else "")' "$1" "$2"
}
