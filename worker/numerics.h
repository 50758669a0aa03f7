// What of this process and machine decides the bits, set and checked. Free of libtorch's headers.
#pragma once

#include <string>

#include "common/status.h"

namespace surefoot {

// To be called once, before any tensor exists: floating-point mode; threads of libtorch (intra-op
// `threads`, inter-op 1) and of the BLAS; deterministic algorithms; then reads all of it back.
// kInvalid: something did not take, says what.
Status set_up_numerics(int threads);

// One line: build (a hash of the sources that compute, and the compiler), libtorch, BLAS with its
// build options and the kernel it chose for this processor, processor capability as libtorch sees
// it, threads. Jobs promise equal bits only where it is equal. After set_up_numerics().
[[nodiscard]] std::string numerics_id();

}  // namespace surefoot
