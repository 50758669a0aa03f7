// Which folder may include which, and which vendor's headers may stand where. Reads the #include
// lines of every source of the project, since headers under /usr/include resolve without a link, so
// the build cannot tell.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "common/test_paths.h"

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>> kMayKnow = {
    {"common", {"common"}},
    {"configs", {"common", "configs"}},
    {"collectives", {"common", "collectives"}},
    {"checkpoint", {"common", "configs", "checkpoint"}},
    {"worker", {"common", "configs", "collectives", "checkpoint", "worker"}},
    {"launcher", {"common", "configs", "checkpoint", "launcher"}},
    {"examples", {"common"}},
    {"tests", {"common", "configs", "collectives", "checkpoint", "worker", "launcher", "tests"}},
};

// A vendor's header (prefix of the included path) and the only folders it may be included in.
const std::vector<std::pair<std::string, std::vector<std::string>>> kVendors = {
    {"dlfcn.h", {"launcher/nvidia/library.cpp", "worker/numerics.cpp"}},
    {"mpi.h", {"collectives/mpi/"}},
    {"nccl.h", {"collectives/nccl/"}},
    {"cuda", {"collectives/nccl/", "worker/"}},
    {"torch/", {"worker/", "examples/your-own-model/"}},
    {"ATen/", {"worker/"}},
    {"c10/", {"worker/"}},
    {"zmq", {"checkpoint/"}},
    {"sqlite3.h", {"launcher/"}},
    {"yaml-cpp/", {"configs/"}},
    {"xxhash.h", {"common/"}},
    {"openssl/", {"common/", "checkpoint/store/s3/"}},
    {"curl/", {"common/http", "checkpoint/store/s3/"}},
    {"httplib", {"launcher/notice/"}},
    {"pugixml", {"checkpoint/store/s3/"}},
    {"sodium.h", {"checkpoint/"}},
    {"CLI/", {"launcher/", "worker/", "tests/", "collectives/", "checkpoint/"}},
    {"google/protobuf/", {"configs/", "checkpoint/", "launcher/"}},
};

struct Include {
  std::string file;
  std::string path;
  bool quoted;
};

std::vector<Include> includes_of(const fs::path& root) {
  static const std::regex line_form(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> found;
  for (const auto& [folder, unused] : kMayKnow) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
        continue;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        std::smatch match;
        if (std::regex_search(line, match, line_form)) {
          found.push_back({fs::relative(entry.path(), root), match[2], match[1] == "\""});
        }
      }
    }
  }
  return found;
}

std::string folder_of(const std::string& path) {
  return path.substr(0, path.find('/'));
}

std::vector<std::string> violations(const std::vector<Include>& includes) {
  std::vector<std::string> found;
  for (const Include& include : includes) {
    const std::string target = folder_of(include.path);
    if (include.quoted &&
        (include.path.find('/') == std::string::npos || !kMayKnow.contains(target))) {
      found.push_back(include.file + ": \"" + include.path +
                      "\" does not start at the root of the project");
    } else if (include.quoted && !kMayKnow.at(folder_of(include.file)).contains(target)) {
      found.push_back(include.file + " must not know " + include.path);
    }
    if (include.quoted) continue;
    for (const auto& [vendor, folders] : kVendors) {
      if (!include.path.starts_with(vendor)) continue;
      bool allowed = false;
      for (const std::string& folder : folders)
        allowed = allowed || include.file.starts_with(folder);
      if (!allowed) found.push_back(include.file + " must not include <" + include.path + ">");
    }
  }
  return found;
}

TEST(Arrows, HoldInEveryFileOfTheProject) {
  const auto includes = includes_of(surefoot::source_folder());
  ASSERT_GT(includes.size(), 100u);
  for (const std::string& violation : violations(includes)) ADD_FAILURE() << violation;
}

TEST(Arrows, AWrongIncludeIsSeen) {
  EXPECT_EQ(violations({{"common/x.h", "configs/job.h", true}}).size(), 1u);
  EXPECT_EQ(violations({{"launcher/x.h", "worker/model.h", true}}).size(), 1u);
  EXPECT_EQ(violations({{"launcher/x.h", "collectives/reducer.h", true}}).size(), 1u);
  EXPECT_EQ(violations({{"common/x.h", "ids.h", true}}).size(), 1u);
  EXPECT_EQ(violations({{"collectives/local/x.h", "mpi.h", false}}).size(), 1u);
  EXPECT_EQ(violations({{"checkpoint/x.h", "torch/torch.h", false}}).size(), 1u);
  EXPECT_EQ(violations({{"worker/x.h", "checkpoint/arena.h", true}}).size(), 0u);
}

}  // namespace
