// Scheduled Events. The first question turns the service on, which may take two minutes.
#include <nlohmann/json.hpp>
#include <set>

#include "launcher/notice/interpret.h"

namespace surefoot::notice {
namespace {

constexpr Duration kInterval = std::chrono::seconds(1);
constexpr Duration kFirstPatience = std::chrono::seconds(150);
constexpr Duration kPatience = std::chrono::seconds(2);
constexpr Duration kNameInterval = std::chrono::minutes(1);  // arbitrary; while it is not known
constexpr const char* kEvents = "/metadata/scheduledevents?api-version=2020-07-01";
constexpr const char* kName = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";

class Azure final : public Source {
 public:
  explicit Azure(SourceSettings settings) : settings_(std::move(settings)) {}

  std::vector<Finding> look(Asker& asker, const Moment& moment) override {
    const Answer answer = asker.ask(question(kEvents, answered_ ? kPatience : kFirstPatience));
    std::vector<Finding> findings;
    findings.push_back(interpret("scheduledevents", answer, false, [this](std::string_view body) {
      return read_azure_events(body, name_.empty() ? settings_.machine : name_, settings_.lead);
    }));
    answered_ = answered_ || answer.status == 200;
    for (const std::string& id : moment.safe_ids) {
      if (!approved_.contains(id)) findings.push_back(approve(asker, id));
    }
    // What hurries has been asked: this question may hang.
    if (name_.empty() && answer.status == 200 && moment.now >= ask_name_at_) {
      ask_name_at_ = moment.now + kNameInterval;
      learn_name(asker);
    }
    return findings;
  }
  [[nodiscard]] Duration interval() const override { return kInterval; }
  [[nodiscard]] bool cancels() const override { return true; }

 private:
  [[nodiscard]] Question question(const std::string& path, Duration patience) const {
    Question question;
    question.url = settings_.base + path;
    question.headers = {{"Metadata", "true"}};
    question.patience = patience;
    return question;
  }
  // Events of a whole group of machines come to each of them. Until the service says how it calls
  // this one, it goes by its host name, which is often the same.
  void learn_name(Asker& asker) {
    const Answer answer = asker.ask(question(kName, kPatience));
    if (answer.status == 200) name_ = read_word(answer.body);
  }
  // The event may then start at once. What is not taken is said again at the next look.
  Finding approve(Asker& asker, const std::string& id) {
    Question post = question(kEvents, kPatience);
    post.method = "POST";
    post.headers.emplace_back("Content-Type", "application/json");
    post.body =
        nlohmann::json{{"StartRequests", nlohmann::json::array({{{"EventId", id}}})}}.dump();
    const Answer answer = asker.ask(post);
    Finding finding =
        interpret("approval", answer, false, [](std::string_view) -> Reading { return {}; });
    if (!finding.trouble) approved_.insert(id);
    return finding;
  }

  SourceSettings settings_;
  std::string name_;
  Time ask_name_at_{};
  bool answered_ = false;
  std::set<std::string> approved_;
};

}  // namespace

std::unique_ptr<Source> make_azure(SourceSettings settings) {
  return std::make_unique<Azure>(std::move(settings));
}

}  // namespace surefoot::notice
