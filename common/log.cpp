#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdio>
#include <cstdlib>

#include "common/check.h"

namespace surefoot {

void init_log(const std::string& who) {
  auto logger =
      std::make_shared<spdlog::logger>(who, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %-7l %n: %v", spdlog::pattern_time_type::utc);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

void internal::check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: a bug in surefoot: %s does not hold\n", file, line, condition);
  std::abort();
}

}  // namespace surefoot
