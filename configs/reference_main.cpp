// surefoot-reference: prints the reference page of the job file. `surefoot-reference >
// docs/job-file.md` after each change of job.proto.

#include <cstdio>

#include "configs/job.h"

int main() {
  const std::string page = surefoot::reference_page();
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() && std::fflush(stdout) == 0
             ? 0
             : 1;
}
