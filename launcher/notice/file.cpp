// recovery.notice_file: the machine goes when it is there, whatever is in it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/file.h"
#include "launcher/notice/payloads.h"
#include "launcher/notice/source.h"

namespace surefoot::notice {
namespace {

constexpr Duration kInterval = std::chrono::milliseconds(250);  // a look costs one system call
constexpr std::size_t kLongest = 4096;

class File final : public Source {
 public:
  explicit File(SourceSettings settings) : settings_(std::move(settings)) {}

  std::vector<Finding> look(Asker& /*asker*/, const Moment& /*moment*/) override {
    struct stat info {};
    if (::stat(settings_.file.c_str(), &info) != 0) {
      Finding none{"file", {}, {}};
      if (errno != ENOENT && errno != ENOTDIR)
        none.trouble = Trouble{"not seen", errno_text(errno)};
      return {none};
    }
    // A pipe or a device must not hold up who opens it.
    const Fd file(::open(settings_.file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    std::array<char, kLongest> bytes{};
    const ssize_t got = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
    const std::string problem = got < 0 ? errno_text(errno) : "";
    Reading reading =
        read_seconds({bytes.data(), got < 0 ? 0 : static_cast<std::size_t>(got)}, settings_.lead);
    if (reading.trouble) reading.sightings = read_seconds("", settings_.lead).sightings;
    if (got < 0) reading.trouble = Trouble{"not read", problem};
    return {{"file", std::move(reading.sightings), std::move(reading.trouble)}};
  }
  [[nodiscard]] Duration interval() const override { return kInterval; }

 private:
  SourceSettings settings_;
};

}  // namespace

std::unique_ptr<Source> make_file(SourceSettings settings) {
  return std::make_unique<File>(std::move(settings));
}

}  // namespace surefoot::notice
