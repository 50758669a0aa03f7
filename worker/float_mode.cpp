#include "worker/float_mode.h"

#include <xmmintrin.h>

#include <limits>

namespace surefoot {
namespace {

// Bits of MXCSR (Intel SDM vol. 1, 10.2.3).
constexpr unsigned kDenormalsAreZero = 1u << 6;
constexpr unsigned kFlushToZero = 1u << 15;
constexpr unsigned kRounding = 3u << 13;  // 0: to nearest, ties to even

}  // namespace

void set_float_mode() {
  _mm_setcsr(_mm_getcsr() & ~(kDenormalsAreZero | kFlushToZero | kRounding));
}

Status check_float_mode() {
  const unsigned mode = _mm_getcsr();
  if (mode & kFlushToZero)
    return error(Code::kInvalid, "the processor flushes denormal results to zero (FTZ is on)");
  if (mode & kDenormalsAreZero)
    return error(Code::kInvalid, "the processor reads denormals as zero (DAZ is on)");
  if (mode & kRounding) return error(Code::kInvalid, "the processor does not round to nearest");
  volatile float tiny = std::numeric_limits<float>::denorm_min();
  volatile float half = std::numeric_limits<float>::min();
  if (tiny + tiny != 2 * std::numeric_limits<float>::denorm_min() || !(half / 2 > 0)) {
    return error(Code::kInvalid, "arithmetic with denormals gives zero");
  }
  return {};
}

}  // namespace surefoot
