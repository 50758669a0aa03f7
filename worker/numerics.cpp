#include "worker/numerics.h"

#include <dlfcn.h>

#include "worker/float_mode.h"
#include "worker/numerics_build.h"  // kNumericsBuild, made by the build from the sources that compute
#include "worker/torch_compat.h"

namespace surefoot {
namespace {

// OpenBLAS is loaded by libtorch, if at all; nothing here links to it.
template <class Function>
Function* blas_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

std::string blas_text() {
  const auto config = blas_function<char*()>("openblas_get_config");
  if (config == nullptr) return "BLAS unknown";
  const auto core = blas_function<char*()>("openblas_get_corename");
  return fmt::format("{} kernel {}", config(), core != nullptr ? core() : "unknown");
}

// The line "CPU capability usage: AVX2" of libtorch's own description; the function behind it is
// not exported by 1.13.
std::string cpu_capability() {
  constexpr std::string_view kKey = "CPU capability usage: ";
  const std::string config = at::show_config();
  const std::size_t at = config.find(kKey);
  if (at == std::string::npos) return "unknown";
  return config.substr(at + kKey.size(), config.find('\n', at) - at - kKey.size());
}

}  // namespace

Status set_up_numerics(int threads) {
  set_float_mode();
  at::globalContext().setFlushDenormal(false);
  try {
    at::set_num_threads(threads);
    if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
    at::globalContext().setDeterministicAlgorithms(true, false);
  } catch (const std::exception& e) {
    return error(Code::kInvalid, "libtorch: {}", e.what());
  }
  const auto set_blas = blas_function<void(int)>("openblas_set_num_threads");
  const auto get_blas = blas_function<int()>("openblas_get_num_threads");
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

std::string numerics_id() {
  return fmt::format("surefoot {}; libtorch {}; {}; {}; threads {}", kNumericsBuild, TORCH_VERSION,
                     blas_text(), cpu_capability(), at::get_num_threads());
}

}  // namespace surefoot
