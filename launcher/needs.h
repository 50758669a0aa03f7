// What a job will need, as `surefoot validate` says it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace surefoot {

// Floating-point operations of forward and backward; 0: not told.
[[nodiscard]] double flops_per_sample_of(const nlohmann::json& needs);

// `needs`: what `surefoot-worker JOB --describe` prints: parameters, state_bytes,
// gradient_buffer_bytes, receive_bytes, arena_bytes, samples, eval_samples, steps, epochs,
// micro_batches; a missing number is left out. The memory of libraries and activations is not in
// it. Pure.
[[nodiscard]] std::string needs_screen(const nlohmann::json& needs, int workers);

}  // namespace surefoot
