// What the tests of this folder share: a fresh folder with small data files, and a job file that is
// right.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "configs/job.h"

namespace surefoot {

class JobFolder {
 public:
  JobFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "surefoot-configs-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = std::filesystem::canonical(pattern);
    write("data.txt", std::string(1000, 'a'));
    write("tokens.bin", std::string(1000, '\0'));
    write("odd.bin", "7 bytes");
    write("images.gz", "images");
    write("labels.gz", "labels");
    write("module.pt", "module");
  }
  ~JobFolder() { std::filesystem::remove_all(path_); }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  [[nodiscard]] LoadOutcome load(const std::string& text,
                                 const std::vector<std::string>& sets = {}) const {
    return load_job(write("job.yaml", text), {.sets = sets});
  }

 private:
  std::filesystem::path path_;
};

// Lines 1 to 10.
inline constexpr const char* kRightJob = R"(name: right
model: {kind: gpt, n_layer: 2}
data: {kind: text, path: data.txt}
train:
  max_steps: 300
  global_batch_size: 32
  micro_batch_size: 4
  optimizer: {kind: adamw, lr: 1e-3}
  schedule: {kind: cosine, warmup_steps: 50, min_lr: 1e-4}
resources: {workers_per_node: 2}
)";

// The faults as the user would read them, for failed assertions.
inline std::string texts(const std::vector<Fault>& faults) {
  std::string out;
  for (const Fault& fault : faults) out += fault.text() + "\n";
  return out;
}

}  // namespace surefoot
