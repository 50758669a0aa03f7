// alibaba, tencent and volcengine: one question, and the answer is the time when the machine goes.
#include "launcher/notice/interpret.h"
#include "launcher/notice/token.h"

namespace surefoot::notice {
namespace {

constexpr Duration kInterval = std::chrono::seconds(2);  // arbitrary; they leave minutes

class TerminationTime final : public Source {
 public:
  using Get = std::function<Answer(Asker& asker, Time now)>;
  explicit TerminationTime(Get get) : get_(std::move(get)) {}
  std::vector<Finding> look(Asker& asker, const Moment& moment) override {
    return {interpret("termination-time", get_(asker, moment.now), true, read_termination_time)};
  }
  [[nodiscard]] Duration interval() const override { return kInterval; }

 private:
  Get get_;
};

std::unique_ptr<Source> plain(const std::string& url) {
  return std::make_unique<TerminationTime>([url](Asker& asker, Time) {
    Question question;
    question.url = url;
    return asker.ask(question);
  });
}

}  // namespace

std::unique_ptr<Source> make_alibaba(SourceSettings settings) {
  TokenAsker token(settings.base,
                   {"X-aliyun-ecs-metadata-token-ttl-seconds", "X-aliyun-ecs-metadata-token"});
  return std::make_unique<TerminationTime>([token](Asker& asker, Time now) mutable {
    return token.get(asker, "/latest/meta-data/instance/spot/termination-time", now);
  });
}

std::unique_ptr<Source> make_tencent(SourceSettings settings) {
  return plain(settings.base + "/latest/meta-data/spot/termination-time");
}

std::unique_ptr<Source> make_volcengine(SourceSettings settings) {
  return plain(settings.base + "/latest/spot_instance_termination_time");
}

}  // namespace surefoot::notice
