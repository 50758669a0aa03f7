#include "launcher/nvidia/library.h"

#include <dlfcn.h>

namespace surefoot {

Library::Library(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.empty()) continue;
    handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    const char* const said = ::dlerror();
    if (fault_.empty()) fault_ = said != nullptr ? said : "cannot be loaded";
  }
}

void* Library::symbol(const char* name) const {
  return ::dlsym(handle_, name);
}

std::string Library::file_of(const char* function) const {
  Dl_info info{};
  void* const found = symbol(function);
  if (found == nullptr || ::dladdr(found, &info) == 0 || info.dli_fname == nullptr) return "";
  return info.dli_fname;
}

}  // namespace surefoot
