// Compute Engine: a question that the service holds until its answer changes.
#include <fmt/format.h>

#include "launcher/notice/interpret.h"

namespace surefoot::notice {
namespace {

constexpr Duration kInterval = std::chrono::milliseconds(200);
constexpr std::chrono::seconds kHold{10};
constexpr Duration kBeyondHold = std::chrono::seconds(5);
constexpr const char* kInstance = "/computeMetadata/v1/instance/";

class Gcp final : public Source {
 public:
  explicit Gcp(SourceSettings settings) : settings_(std::move(settings)) {}

  // What has changed between two held questions is found by its ETag, or where there is none, when
  // the hold is over.
  std::vector<Finding> look(Asker& asker, const Moment& /*moment*/) override {
    const Duration lead = settings_.lead;
    std::vector<Finding> findings;
    findings.push_back(
        interpret("maintenance-event", asker.ask(question("maintenance-event")), false,
                  [lead](std::string_view body) { return read_gcp_maintenance(body, lead); }));
    Question preempted = question("preempted");
    if (asked_) {
      preempted.url += fmt::format("?wait_for_change=true&timeout_sec={}", kHold.count());
      if (!etag_.empty()) preempted.url += "&last_etag=" + etag_;
      preempted.patience = kHold + kBeyondHold;
    }
    const Answer answer = asker.ask(preempted);
    findings.push_back(interpret("preempted", answer, false, [lead](std::string_view body) {
      return read_gcp_preempted(body, lead);
    }));
    // After trouble the first question is one that is answered at once.
    asked_ = !findings.back().trouble;
    etag_ = asked_ ? read_word(answer.etag) : "";
    return findings;
  }
  [[nodiscard]] Duration interval() const override { return kInterval; }

 private:
  [[nodiscard]] Question question(const std::string& name) const {
    Question question;
    question.url = settings_.base + kInstance + name;
    question.headers = {{"Metadata-Flavor", "Google"}};
    return question;
  }

  SourceSettings settings_;
  bool asked_ = false;
  std::string etag_;
};

}  // namespace

std::unique_ptr<Source> make_gcp(SourceSettings settings) {
  return std::make_unique<Gcp>(std::move(settings));
}

}  // namespace surefoot::notice
