// surefoot-mock-metadata: a metadata service for end-to-end tests and demonstrations.
//
//   surefoot-mock-metadata --when FILE [--address 127.0.0.1] [--port 0] [--lead 120]
//                          [--machine NAME]
//
// Speaks the protocols of aws, gcp, azure, alibaba, tencent and volcengine at once, since their
// paths differ. When FILE appears this machine goes: in as many seconds as stand in it, else in
// --lead. When it is removed the event is called off. Runs until it is ended. Standard output:
// "listening on ADDRESS:PORT" once it does, and "approved ID" when an azure event was approved.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/file.h"
#include "launcher/notice/payloads.h"
#include "launcher/notice/testing/mock_metadata.h"

namespace surefoot::notice {
namespace {

constexpr useconds_t kLookUs = 20'000;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void play(MockMetadata& mock, const std::string& when, Duration lead) {
  bool there = false;
  for (std::size_t approved = 0;; ::usleep(kLookUs)) {
    const auto content = read_file(when);
    if (content.has_value() != std::exchange(there, content.has_value())) {
      if (there) {
        const Reading reading = read_seconds(*content, lead);
        const Duration in = reading.trouble ? lead : *reading.sightings.front().in;
        mock.announce(
            std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now() + in));
      } else {
        mock.call_off();
      }
    }
    const auto ids = mock.approved();
    for (; approved < ids.size(); ++approved) say("approved " + ids[approved]);
  }
}

}  // namespace
}  // namespace surefoot::notice

int main(int argc, char** argv) {
  surefoot::notice::MockMetadata::Options options;
  std::string when;
  double lead = 120;
  CLI::App app("A metadata service that takes this machine away when a file appears.");
  app.add_option("--when", when, "the file")->required();
  app.add_option("--address", options.address);
  app.add_option("--port", options.port);
  app.add_option("--lead", lead, "seconds until it goes");
  app.add_option("--machine", options.machine, "its name in azure");
  CLI11_PARSE(app, argc, argv);
  const auto mock = surefoot::notice::MockMetadata::start(options);
  if (!mock) {
    std::fprintf(stderr, "%s\n", mock.error().message.c_str());
    return 1;
  }
  surefoot::notice::say(fmt::format("listening on {}:{}", options.address, (*mock)->port()));
  surefoot::notice::play(
      **mock, when,
      std::chrono::duration_cast<surefoot::Duration>(std::chrono::duration<double>(lead)));
}
