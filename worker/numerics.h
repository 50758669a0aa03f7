// What of this process and machine decides the bits, set and checked. Free of libtorch's headers.
#pragma once

#include <string>

#include "common/status.h"

namespace surefoot {

class Device;

// To be called once, before any tensor exists: floating-point mode; threads of libtorch (intra-op
// `threads`, inter-op 1) and of the BLAS; deterministic algorithms; then reads all of it back.
// kInvalid: something did not take, says what.
Status set_up_numerics(int threads);

// The same for a GPU: libraries whose order of additions is fixed, none chosen by a race; products
// of fp32 matrices in TF32 or not. CUBLAS_WORKSPACE_CONFIG has to be set already (open_device).
void set_up_gpu_numerics(bool tf32);

// One line: build (a hash of the sources that compute, and the compiler), libtorch, BLAS with its
// build options and the kernel it chose for this processor, processor capability as libtorch sees
// it, threads; with a device also what of it decides bits, and the libraries that compute there.
// Jobs promise equal bits only where it is equal. After set_up_numerics().
[[nodiscard]] std::string numerics_id(const Device* device = nullptr);

}  // namespace surefoot
