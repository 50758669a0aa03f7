#include "launcher/notice/watchers.h"

#include "configs/notices.h"

namespace surefoot::notice {
namespace {

using Recovery = config::Recovery;
constexpr Duration kStopPatience = std::chrono::seconds(1);

}  // namespace

std::string default_base(SourceKind kind) {
  switch (kind) {
    case Recovery::aws:
    case Recovery::azure:
    // As metadata.google.internal, and needs no name server.
    case Recovery::gcp:
      return "http://169.254.169.254";
    case Recovery::alibaba:
      return "http://100.100.100.200";
    case Recovery::tencent:
      return "http://metadata.tencentyun.com";
    case Recovery::volcengine:
      return "http://100.96.0.96";
    default:
      return "";
  }
}

std::unique_ptr<Source> make_source(SourceKind kind, SourceSettings settings) {
  switch (kind) {
    case Recovery::aws:
      return make_aws(std::move(settings));
    case Recovery::gcp:
      return make_gcp(std::move(settings));
    case Recovery::azure:
      return make_azure(std::move(settings));
    case Recovery::alibaba:
      return make_alibaba(std::move(settings));
    case Recovery::tencent:
      return make_tencent(std::move(settings));
    case Recovery::volcengine:
      return make_volcengine(std::move(settings));
    case Recovery::file:
      return make_file(std::move(settings));
    default:
      return nullptr;
  }
}

Result<std::string> base_of(SourceKind kind, const Recovery& recovery) {
  std::string base = default_base(kind);
  for (const std::string& entry : recovery.notice_endpoints()) {
    SUREFOOT_ASSIGN(NoticeEndpoint endpoint, parse_notice_endpoint(entry));
    if (endpoint.source == kind) base = std::move(endpoint.url);
  }
  return base;
}

Result<std::unique_ptr<Watchers>> Watchers::start(const Recovery& recovery,
                                                  const std::string& machine) {
  auto watchers = std::make_unique<Watchers>();
  const auto lead = std::chrono::milliseconds(recovery.notice_lead());
  std::set<int> started;
  for (const int number : recovery.notices()) {
    const auto kind = static_cast<SourceKind>(number);
    if (kind == Recovery::signal || !started.insert(number).second) continue;
    if (kind == Recovery::http) {
      SUREFOOT_ASSIGN(ListenAddress address, parse_listen(recovery.notice_listen()));
      watchers->post_ = std::make_unique<PostServer>(std::move(address), lead, watchers->desk_);
      continue;
    }
    SUREFOOT_ASSIGN(std::string base, base_of(kind, recovery));
    auto source = make_source(kind, {std::move(base), lead, recovery.notice_file(), machine});
    watchers->watchers_.push_back(std::make_unique<Watcher>(Recovery::NoticeSource_Name(kind),
                                                            std::move(source), watchers->desk_));
  }
  return watchers;
}

Watchers::~Watchers() {
  const Time deadline = now() + kStopPatience;
  for (auto& watcher : watchers_) watcher->stop(now());
  for (auto& watcher : watchers_) watcher->stop(deadline);
  if (post_) post_->stop(deadline);
}

}  // namespace surefoot::notice
