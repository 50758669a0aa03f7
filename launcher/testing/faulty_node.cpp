// surefoot-node with faults, for tests. By environment:
//
//   FAULTY_POINTS=FILE     each point of its life is appended there, a line each: "before put
//                          manifest", "after reply hello". Points are before and after each reply
//                          but those to status, and before and after each operation on the store.
//   FAULTY_DIE=N POINT     it ends itself with SIGKILL when it comes to POINT for the Nth time
//   FAULTY_FAILING=FILE    while that file exists, every operation on the store fails
//   FAULTY_PIECE_MS=MS     each piece of an object takes so long to write
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "checkpoint/part.h"
#include "common/file.h"
#include "launcher/node/node.h"

namespace surefoot {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class Points {
 public:
  void reach(const std::string& point) {
    const std::lock_guard lock(mutex_);
    const Fd file(
        ::open(variable("FAULTY_POINTS").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const std::string line = point + "\n";
    if (file) [[maybe_unused]]
      const ssize_t put = ::write(file.get(), line.data(), line.size());
    const std::string time = std::to_string(++times_[point]);
    if (variable("FAULTY_DIE") == time + " " + point) ::kill(::getpid(), SIGKILL);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> times_;
};

std::string kind_of(const std::string& name) {
  if (name == "job.json") return "job";
  const auto parsed = parse_name(name);
  if (!parsed) return "steps";
  return parsed->manifest ? "manifest" : "part";
}

class FaultyStore final : public Store {
 public:
  FaultyStore(std::unique_ptr<Store> store, Points& points)
      : store_(std::move(store)), points_(points) {}

  Status put_if_absent(const std::string& name, std::int64_t bytes, const ByteSource& source,
                       Time deadline) override {
    const std::string slow = variable("FAULTY_PIECE_MS");
    const ByteSource slowly = [&]() -> Result<std::span<const std::byte>> {
      if (!slow.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(slow)));
      return source();
    };
    return at("put " + kind_of(name),
              [&]() -> Status { return store_->put_if_absent(name, bytes, slowly, deadline); });
  }
  Status read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
              Time deadline) override {
    return at("read " + kind_of(name),
              [&]() -> Status { return store_->read(name, offset, into, deadline); });
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time deadline) override {
    return at("list",
              [&]() -> Result<std::vector<ObjectInfo>> { return store_->list(prefix, deadline); });
  }
  Status remove(const std::string& name, Time deadline) override {
    return at("remove " + kind_of(name),
              [&]() -> Status { return store_->remove(name, deadline); });
  }
  [[nodiscard]] std::string url() const override { return store_->url(); }

 private:
  template <class Operation>
  auto at(const std::string& what, const Operation& operation) -> decltype(operation()) {
    points_.reach("before " + what);
    const std::string failing = variable("FAULTY_FAILING");
    if (!failing.empty() && std::filesystem::exists(failing))
      return error(Code::kRetry, "the store of the test fails");
    auto done = operation();
    points_.reach("after " + what);
    return done;
  }

  std::unique_ptr<Store> store_;
  Points& points_;
};

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  surefoot::Points points;
  return surefoot::run_node(argc, argv, [&points](surefoot::ServiceSettings& settings) {
    settings.open_store =
        [&points,
         open = settings.open_store]() -> surefoot::Result<std::unique_ptr<surefoot::Store>> {
      SUREFOOT_ASSIGN(auto store, open());
      return std::unique_ptr<surefoot::Store>(
          std::make_unique<surefoot::FaultyStore>(std::move(store), points));
    };
    settings.at_reply = [&points](std::string_view point) {
      // "before hello" -> "before reply hello"
      const std::size_t space = point.find(' ');
      points.reach(std::string(point.substr(0, space)) + " reply" +
                   std::string(point.substr(space)));
    };
  });
}
