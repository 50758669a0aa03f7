#include "worker/numerics.h"

#include <dlfcn.h>

#include "worker/device.h"
#include "worker/float_mode.h"
#include "worker/numerics_build.h"  // kNumericsBuild, made by the build from the sources that compute
#include "worker/torch_compat.h"

namespace surefoot {
namespace {

// OpenBLAS, cuBLAS and cuDNN are loaded by libtorch, if at all; nothing here links to them.
template <class Function>
Function* loaded_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

// The rest of the line of libtorch's own description that has `key`; empty: there is none.
std::string described(std::string_view key) {
  const std::string config = at::show_config();
  const std::size_t at = config.find(key);
  if (at == std::string::npos) return "";
  return config.substr(at + key.size(), config.find('\n', at) - at - key.size());
}

std::string blas_text() {
  const auto config = loaded_function<char*()>("openblas_get_config");
  if (config == nullptr) {
    // What PyTorch's wheels have inside.
    const std::string mkl = described("Math Kernel Library Version ");
    return mkl.empty() ? "BLAS unknown" : "MKL " + mkl;
  }
  const auto core = loaded_function<char*()>("openblas_get_corename");
  return fmt::format("{} kernel {}", config(), core != nullptr ? core() : "unknown");
}

// "AVX2"; the function behind it is not exported by 1.13.
std::string cpu_capability() {
  const std::string capability = described("CPU capability usage: ");
  return capability.empty() ? "unknown" : capability;
}

}  // namespace

Status set_up_numerics(int threads) {
  set_float_mode();
  at::globalContext().setFlushDenormal(false);
  try {
    at::set_num_threads(threads);
    if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
    set_deterministic();
  } catch (const std::exception& e) {
    return error(Code::kInvalid, "libtorch: {}", e.what());
  }
  const auto set_blas = loaded_function<void(int)>("openblas_set_num_threads");
  const auto get_blas = loaded_function<int()>("openblas_get_num_threads");
  if (set_blas != nullptr) set_blas(threads);

  if (at::get_num_threads() != threads || at::get_num_interop_threads() != 1) {
    return error(Code::kInvalid,
                 "libtorch runs with {} threads and {} inter-op, resources.threads_per_worker asks "
                 "for {} and 1",
                 at::get_num_threads(), at::get_num_interop_threads(), threads);
  }
  if (get_blas != nullptr && get_blas() != threads) {
    return error(Code::kInvalid,
                 "the BLAS runs with {} threads, resources.threads_per_worker asks for {}",
                 get_blas(), threads);
  }
  return check_float_mode();
}

void set_up_gpu_numerics(bool tf32) {
  set_deterministic_gpu(tf32);
}

std::string numerics_id(const Device* device) {
  std::string id = fmt::format("surefoot {}; libtorch {}; {}; {}; threads {}", kNumericsBuild,
                               TORCH_VERSION, blas_text(), cpu_capability(), at::get_num_threads());
  if (device == nullptr) return id;
  id += "; device " + device->facts().numerics;
  if (!device->facts().is_cuda) return id;
  for (const char* version : {"cublasLtGetVersion", "cudnnGetVersion"}) {
    const auto call = loaded_function<std::size_t()>(version);
    id += fmt::format("; {} {}", version, call != nullptr ? std::to_string(call()) : "unknown");
  }
  return id;
}

}  // namespace surefoot
