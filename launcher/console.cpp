#include "launcher/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

#include "common/clock.h"

namespace surefoot {
namespace {

constexpr Duration kPlainInterval =
    std::chrono::seconds(5);  // arbitrary: a log of an hour stays readable

std::string clock_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

int width_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

Console::Console(const Options& options)
    : options_(options), terminal_(::isatty(options.fd) == 1), clock_(kPlainInterval) {
  const char* kind = std::getenv("TERM");
  if (kind == nullptr || std::string(kind) == "dumb") terminal_ = false;
}

void Console::print(const std::string& text) {
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t put = ::write(options_.fd, rest.data(), rest.size());
    if (put <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
}

void Console::clear() {
  if (!shown_.empty()) print("\r\033[K");
  shown_.clear();
}

void Console::line(const std::string& text) {
  const std::string progress = shown_;
  clear();
  print(clock_time() + "  " + text + "\n" + progress);
  shown_ = progress;
}

void Console::event(const std::string& text) {
  if (!options_.quiet) line(text);
}

void Console::warning(const std::string& text) {
  line(text);
}

void Console::progress(const Progress& progress) {
  if (options_.quiet) return;
  if (!terminal_) {
    if (clock_.due(progress.step, progress.max_steps, now())) line(progress_line(progress, 200));
    return;
  }
  const std::string text = progress_line(progress, width_of(options_.fd) - 1);
  if (text == shown_) return;
  print("\r\033[K" + text);
  shown_ = text;
}

}  // namespace surefoot
