#include "launcher/notice/interpret.h"

#include <fmt/format.h>

namespace surefoot::notice {

Finding interpret(std::string about, const Answer& answer, bool none_is_404, const Reader& read) {
  Finding finding;
  finding.about = std::move(about);
  if (answer.status == 200) {
    Reading reading = read(answer.body);
    finding.sightings = std::move(reading.sightings);
    finding.trouble = std::move(reading.trouble);
  } else if (answer.status == 0) {
    finding.trouble = Trouble{"no answer", "no answer: " + printable(answer.problem)};
  } else if (answer.status != 404 || !none_is_404) {
    const std::string status = fmt::format("status {}", answer.status);
    finding.trouble = Trouble{status, status};
  }
  return finding;
}

}  // namespace surefoot::notice
