#include "launcher/needs.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "launcher/format.h"

namespace surefoot {
namespace {

double number(const nlohmann::json& needs, const char* key) {
  return needs.contains(key) && needs[key].is_number() ? needs[key].get<double>() : -1;
}

}  // namespace

double flops_per_sample_of(const nlohmann::json& needs) {
  return std::max(number(needs, "flops_per_sample"), 0.0);
}

std::string needs_screen(const nlohmann::json& needs, int workers) {
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    text += fmt::format("  {:<12}  {}\n", label, value);
  };
  const auto bytes = [&](const char* label, const char* key, const std::string& what) {
    const double value = number(needs, key);
    if (value >= 0)
      line(label, fmt::format("{:>10}  {}", bytes_text(static_cast<std::int64_t>(value)), what));
  };
  if (number(needs, "parameters") >= 0)
    line("parameters", fmt::format("{:.0f}", number(needs, "parameters")));
  bytes("state", "state_bytes", "parameters, moments and buffers; one checkpoint takes as much");
  bytes("memory", "arena_bytes", "shared memory of the node: three snapshots of the state");
  bytes("", "gradient_buffer_bytes",
        fmt::format("gradients, in each of {}", count_text(workers, "worker", "workers")));
  bytes("", "receive_bytes", "parts received from other workers, in each");
  if (number(needs, "steps") >= 0) {
    line("steps",
         fmt::format("{:.0f}, {:.0f} micro-batches each, {:.3g} epochs", number(needs, "steps"),
                     number(needs, "micro_batches"), number(needs, "epochs")));
  }
  if (number(needs, "samples") >= 0)
    line("samples", fmt::format("{:.0f}, {:.0f} held out", number(needs, "samples"),
                                std::max(number(needs, "eval_samples"), 0.0)));
  return text;
}

}  // namespace surefoot
