// A vendor's library, loaded when asked for, so that a build and a machine without it are the same
// program. The only place that loads one.
//
// Loading runs the library's own code, which may hang or crash: only to be used in a process that
// may be lost (doctor/run_checks.h, node/gpu_watch.h).
#pragma once

#include <string>
#include <vector>

namespace surefoot {

class Library {
 public:
  // The first of these that there is; never closed, as the process leaves soon.
  explicit Library(const std::vector<std::string>& names);
  explicit operator bool() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& fault() const { return fault_; }

  // nullptr: this version has none.
  template <class Function>
  [[nodiscard]] Function* find(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }
  // The file that it came from.
  [[nodiscard]] std::string file_of(const char* function) const;

 private:
  [[nodiscard]] void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string fault_;
};

}  // namespace surefoot
