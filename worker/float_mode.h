// The processor's floating-point mode: denormals kept (FTZ and DAZ off), rounding to nearest. Per
// thread; a library compiled with -ffast-math can switch it when it is loaded, and then the same
// job gives other bits.
#pragma once

#include "common/status.h"

namespace surefoot {

// Sets the mode of the calling thread. Threads started later inherit it.
void set_float_mode();
// kInvalid names what is wrong in the calling thread, by its control register and by adding up a
// denormal.
[[nodiscard]] Status check_float_mode();

}  // namespace surefoot
