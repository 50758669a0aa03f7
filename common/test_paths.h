// Where tests find the project's programs and sources.
#pragma once

#include <cstdlib>
#include <filesystem>

#include "common/process.h"

namespace surefoot {

// Programs and tests are built into one folder.
inline std::filesystem::path programs_folder() {
  return program_directory();
}

// $SUREFOOT_SOURCE, as ctest sets it; else SOURCE of SOURCE/build/PRESET/bin.
inline std::filesystem::path source_folder() {
  const char* named = std::getenv("SUREFOOT_SOURCE");
  if (named != nullptr) return named;
  return programs_folder().parent_path().parent_path().parent_path();
}

}  // namespace surefoot
