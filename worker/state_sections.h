// Base pointers of the optimizer's sections in one state. `Byte` is std::byte or const std::byte.
#pragma once

#include "checkpoint/layout.h"
#include "worker/optimizer.h"

namespace surefoot {

template <class State, class Byte>
State sections_of(const StateLayout& layout, const config::Optimizer& options,
                  std::span<Byte> state) {
  using Pointer = decltype(State::parameters);
  const auto at = [&](const std::string& name) {
    return reinterpret_cast<Pointer>(state.data() + layout.find(name)->offset);
  };
  State result;
  result.parameters = at("parameters");
  const auto names = Optimizer::moment_names(options);
  for (std::size_t i = 0; i < names.size(); ++i) result.moments[i] = at(names[i]);
  return result;
}

}  // namespace surefoot
