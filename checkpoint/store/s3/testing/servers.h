// Real S3 services for tests: SeaweedFS and rclone's `serve s3`, on loopback, with credentials on.
//
// The programs come with Python packages (tools/install_python.sh). Each runs on free ports in a
// fresh folder of its own, dies with the thread that started it, and is ended by its pid.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store/s3/s3_store.h"
#include "checkpoint/testing/temporary_folder.h"

namespace surefoot::s3 {

inline constexpr const char* kTestAccessKey = "SUREFOOTTESTACCESSKEY";
inline constexpr const char* kSecondAccessKey = "SUREFOOTSECONDACCESSKEY";  // of SeaweedFS
inline constexpr const char* kTestSecretKey = "surefoot/test+secret/never-to-be-printed";

// An environment of just these variables.
[[nodiscard]] Environment environment_of(
    std::vector<std::pair<std::string, std::string>> variables);
// With the credentials above.
[[nodiscard]] Environment test_environment();

// A child process: ended by its pid, with SIGKILL, at the latest when the object goes.
class ChildProcess {
 public:
  // `environment`: all that it has. Output is appended to `log`. Dies with the calling thread.
  ChildProcess(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
               const std::string& log);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool has_ended();
  int wait();  // until it ends; the exit code, or 128 + the signal

 private:
  pid_t pid_;
  int status_ = -1;
};

[[nodiscard]] int free_port();

class S3Server {
 public:
  // Null: its program is not installed. Blocks until it answers.
  [[nodiscard]] static std::unique_ptr<S3Server> seaweedfs();
  [[nodiscard]] static std::unique_ptr<S3Server> rclone();
  // With a certificate of its own, which options() trusts.
  [[nodiscard]] static std::unique_ptr<S3Server> rclone_with_tls();
  ~S3Server();

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string endpoint() const;
  // A store in the bucket "surefoot", which is made.
  [[nodiscard]] S3Options options(const std::string& prefix) const;
  [[nodiscard]] std::string log() const;  // what it has printed

 private:
  S3Server() = default;
  static std::unique_ptr<S3Server> start_rclone(std::unique_ptr<S3Server> server,
                                                const std::vector<std::string>& more);
  void wait_and_make_bucket();

  ::surefoot::testing::TemporaryFolder folder_;
  int port_ = 0;
  std::string certificate_;               // empty: no TLS
  std::vector<std::string> left_behind_;  // files that it makes outside of its folder
  std::unique_ptr<ChildProcess> process_;
};

// Path of a program of the Python packages; empty: it is not installed.
[[nodiscard]] std::string python_program(const std::string& name);

// Waits until `condition` holds, a minute at most.
template <class Condition>
bool eventually(const Condition& condition) {
  for (const Time end = now() + std::chrono::minutes(1); now() < end;) {
    if (condition()) return true;
    const timespec pause{0, 20'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return false;
}

}  // namespace surefoot::s3
