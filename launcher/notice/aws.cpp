// EC2: IMDSv2, or v1 where that gives no token.
#include "launcher/notice/interpret.h"
#include "launcher/notice/token.h"

namespace surefoot::notice {
namespace {

constexpr Duration kInterval = std::chrono::seconds(2);  // "every 5 seconds or faster"
constexpr const char* kData = "/latest/meta-data/";

class Aws final : public Source {
 public:
  explicit Aws(const SourceSettings& settings)
      : lead_(settings.lead),
        token_(settings.base,
               {"X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"}) {}

  std::vector<Finding> look(Asker& asker, const Moment& moment) override {
    const auto ask = [&](const std::string& about, const Reader& read) {
      return interpret(about, token_.get(asker, kData + about, moment.now), true, read);
    };
    // The one that hurries first.
    std::vector<Finding> findings;
    findings.push_back(ask("spot/instance-action",
                           [this](std::string_view body) { return read_aws_action(body, lead_); }));
    findings.push_back(ask("events/recommendations/rebalance", read_aws_rebalance));
    findings.push_back(ask("events/maintenance/scheduled", read_aws_maintenance));
    return findings;
  }
  [[nodiscard]] Duration interval() const override { return kInterval; }

 private:
  Duration lead_;
  TokenAsker token_;
};

}  // namespace

std::unique_ptr<Source> make_aws(SourceSettings settings) {
  return std::make_unique<Aws>(settings);
}

}  // namespace surefoot::notice
