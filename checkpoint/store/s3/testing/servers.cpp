#include "checkpoint/store/s3/testing/servers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/file.h"

namespace surefoot::s3 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBucket = "surefoot";

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

Environment environment_of(std::vector<std::pair<std::string, std::string>> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    for (const auto& [key, value] : variables)
      if (key == name) return value;
    return std::nullopt;
  };
}

Environment test_environment() {
  return environment_of(
      {{"AWS_ACCESS_KEY_ID", kTestAccessKey}, {"AWS_SECRET_ACCESS_KEY", kTestSecretKey}});
}

ChildProcess::ChildProcess(const std::vector<std::string>& argv,
                           const std::vector<std::string>& environment, const std::string& log) {
  const std::vector<char*> arguments = pointers(argv);
  const std::vector<char*> variables = pointers(environment);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  SUREFOOT_CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int in = ::open("/dev/null", O_RDONLY);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(out, 2);
  ::close_range(3, ~0U, 0);
  ::execve(arguments[0], arguments.data(), variables.data());
  ::_exit(127);
}

ChildProcess::~ChildProcess() {
  if (status_ >= 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

bool ChildProcess::has_ended() {
  if (status_ >= 0) return true;
  int raw = 0;
  if (::waitpid(pid_, &raw, WNOHANG) != pid_) return false;
  status_ = WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
  return true;
}

int ChildProcess::wait() {
  int raw = 0;
  if (status_ < 0 && ::waitpid(pid_, &raw, 0) == pid_)
    status_ = WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
  return status_;
}

int free_port() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  SUREFOOT_CHECK(::bind(socket.get(), plain, size) == 0);
  SUREFOOT_CHECK(::getsockname(socket.get(), plain, &size) == 0);
  return ntohs(address.sin_port);
}

std::string python_program(const std::string& name) {
  const char* folder = std::getenv("SUREFOOT_PYTHON_BIN");
  if (folder == nullptr) return "";
  const fs::path path = fs::path(folder) / name;
  return fs::exists(path) ? path.string() : "";
}

std::string S3Server::endpoint() const {
  return fmt::format("{}://127.0.0.1:{}", certificate_.empty() ? "http" : "https", port_);
}

std::string S3Server::log() const {
  return read_file(folder_.path() / "log").value();
}

S3Options S3Server::options(const std::string& prefix) const {
  S3Options options;
  options.endpoint = endpoint();
  options.bucket = kBucket;
  options.prefix = prefix;
  options.client.credentials.environment = test_environment();
  options.client.seed = 1;
  options.client.http.ca_bundle = certificate_;
  return options;
}

S3Server::~S3Server() {
  process_.reset();
  for (const std::string& path : left_behind_) ::unlink(path.c_str());
}

void S3Server::wait_and_make_bucket() {
  const S3Options options = this->options("");
  ClientOptions client_options = options.client;
  client_options.region = options.region;
  client_options.http.direct = true;
  client_options.tries = 1;
  Client client(
      Address::make(options.endpoint, options.region, kBucket, PathStyle::kAlways).value(),
      client_options);
  const bool made = eventually([&] {
    SUREFOOT_CHECK(!process_->has_ended());
    Request make;
    make.method = "PUT";
    make.what = "make";
    make.deadline = now() + std::chrono::seconds(5);
    const Finished finished = client.perform(std::move(make));
    return finished.answer.has_value() || finished.status == 409;
  });
  SUREFOOT_CHECK(made);
}

std::unique_ptr<S3Server> S3Server::seaweedfs() {
  const std::string program = python_program("weed");
  if (program.empty()) return nullptr;
  std::unique_ptr<S3Server> server(new S3Server());
  const fs::path folder = server->folder_.path();
  const std::string data = folder / "data";
  fs::create_directory(data);
  std::ofstream(folder / "s3.json")
      << fmt::format(R"({{"identities":[{{"name":"test","credentials":[{{"accessKey":"{0}",)"
                     R"("secretKey":"{2}"}},{{"accessKey":"{1}","secretKey":"{2}"}}],)"
                     R"("actions":["Admin","Read","Write","List"]}}]}})",
                     kTestAccessKey, kSecondAccessKey, kTestSecretKey);
  std::vector<std::string> argv = {program,
                                   "server",
                                   "-filer",
                                   "-s3",
                                   "-dir=" + data,
                                   "-ip=127.0.0.1",
                                   "-ip.bind=127.0.0.1",
                                   "-s3.iam=false",
                                   "-s3.port.iceberg=0",
                                   "-s3.port.lance=0",
                                   "-s3.config=" + (folder / "s3.json").string(),
                                   "-master.telemetry=false",
                                   "-volume.max=100",
                                   "-master.volumeSizeLimitMB=64",
                                   "-filer.localSocket=" + (folder / "filer.sock").string(),
                                   "-s3.localSocket=" + (folder / "s3.sock").string()};
  for (const char* part : {"master", "volume", "filer", "s3"}) {
    const int port = free_port();
    const int grpc = free_port();
    argv.push_back(fmt::format("-{}.port={}", part, port));
    argv.push_back(fmt::format("-{}.port.grpc={}", part, grpc));
    server->left_behind_.push_back(fmt::format("/tmp/seaweedfs-{}-grpc-{}.sock", part, grpc));
    server->port_ = port;  // of s3, the last
  }
  server->process_ = std::make_unique<ChildProcess>(
      argv, std::vector<std::string>{"HOME=" + folder.string()}, folder / "log");
  server->wait_and_make_bucket();
  return server;
}

std::unique_ptr<S3Server> S3Server::rclone() {
  return start_rclone(std::unique_ptr<S3Server>(new S3Server()), {});
}

std::unique_ptr<S3Server> S3Server::rclone_with_tls() {
  std::unique_ptr<S3Server> server(new S3Server());
  const fs::path folder = server->folder_.path();
  server->certificate_ = folder / "certificate.pem";
  const std::string key = folder / "key.pem";
  ChildProcess make(
      {"/usr/bin/openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
       "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
       "-keyout", key, "-out", server->certificate_},
      {}, folder / "log");
  SUREFOOT_CHECK(make.wait() == 0);
  const std::vector<std::string> more = {"--cert", server->certificate_, "--key", key};
  return start_rclone(std::move(server), more);
}

std::unique_ptr<S3Server> S3Server::start_rclone(std::unique_ptr<S3Server> server,
                                                 const std::vector<std::string>& more) {
  const std::string program = python_program("rclone");
  if (program.empty()) return nullptr;
  const fs::path folder = server->folder_.path();
  fs::create_directory(folder / "data");
  server->port_ = free_port();
  std::vector<std::string> argv = {program,       "serve",
                                   "s3",          (folder / "data").string(),
                                   "--addr",      fmt::format("127.0.0.1:{}", server->port_),
                                   "--config",    (folder / "rclone.conf").string(),
                                   "--cache-dir", (folder / "cache").string()};
  argv.insert(argv.end(), more.begin(), more.end());
  const std::vector<std::string> environment = {
      "HOME=" + folder.string(),
      fmt::format("RCLONE_AUTH_KEY=\"{},{}\"", kTestAccessKey, kTestSecretKey)};
  server->process_ = std::make_unique<ChildProcess>(argv, environment, folder / "log");
  server->wait_and_make_bucket();
  return server;
}

}  // namespace surefoot::s3
