// What is wrong with a job file is found, all of it, and where it stands.

#include <gmock/gmock.h>

#include <sstream>

#include "configs/job_for_test.h"

namespace surefoot {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A right job with `text` in place of the lines `first` to `last` (beyond the end: added).
std::string with_lines(int first, int last, const std::string& text) {
  std::string out;
  std::istringstream lines(kRightJob);
  int number = 0;
  for (std::string old; std::getline(lines, old);) {
    ++number;
    if (number == first) out += text + "\n";
    if (number < first || number > last) out += old + "\n";
  }
  return number < first ? out + text + "\n" : out;
}
std::string with_line(int line, const std::string& text) {
  return with_lines(line, line, text);
}

struct Case {
  const char* name;
  std::string text;
  std::string key;
  int line;
  int column;
  std::string found;    // in the message
  std::string allowed;  // in the message
  std::vector<std::string> sets = {};
};

// The one line of a case is the fault; everything else is right.
const std::vector<Case> kCases = {
    // clang-format off Wrong types
    {"TextForANumber", with_line(5, "  max_steps: many"), "train.max_steps", 5, 14, "many",
     "whole number from 1"},
    {"QuotedNumber", with_line(5, "  max_steps: \"300\""), "train.max_steps", 5, 14, "text \"300\"",
     "whole number"},
    {"FractionForAWholeNumber", with_line(5, "  max_steps: 2.5"), "train.max_steps", 5, 14, "2.5",
     "whole number"},
    {"LeadingZeros", with_line(5, "  max_steps: 0300"), "train.max_steps", 5, 14, "leading zeros",
     "whole number"},
    {"HexadecimalNumber", with_line(5, "  max_steps: 0x10"), "train.max_steps", 5, 14, "0x10",
     "whole number"},
    {"NotANumber", with_line(8, "  optimizer: {kind: adamw, lr: .nan}"), "train.optimizer.lr", 8,
     32, ".nan", "above 0"},
    {"TooLargeForADouble", with_line(8, "  optimizer: {kind: adamw, lr: 1e999}"),
     "train.optimizer.lr", 8, 32, "1e999", "above 0"},
    {"TooLargeForAnInteger", with_line(5, "  max_steps: 99999999999999999999"), "train.max_steps",
     5, 14, "out of range", "whole number"},
    {"NothingForANumber", with_line(5, "  max_steps:"), "train.max_steps", 5, 3, "nothing",
     "whole number"},
    {"ListForANumber", with_line(5, "  max_steps: [1]"), "train.max_steps", 5, 14, "a list",
     "whole number"},
    {"MapForANumber", with_line(5, "  max_steps: {a: 1}"), "train.max_steps", 5, 14, "a map",
     "whole number"},
    {"NumberForAList", with_line(8, "  optimizer: {kind: adamw, lr: 1, betas: 0.9}"),
     "train.optimizer.betas", 8, 42, "0.9", "list"},
    {"TextInAList", with_line(8, "  optimizer: {kind: adamw, lr: 1, betas: [0.9, x]}"),
     "train.optimizer.betas[1]", 8, 48, "x", "number"},
    {"ListTooShort", with_line(8, "  optimizer: {kind: adamw, lr: 1, betas: [0.9]}"),
     "train.optimizer.betas", 8, 42, "1 items", "2 items"},
    {"NumberForASection", with_line(10, "resources: 2"), "resources", 10, 12, "2",
     "workers_per_node"},
    {"ListForASection", with_line(10, "resources: [2]"), "resources", 10, 12, "a list", "a map"},
    {"ListForAText", with_line(1, "name: [right]"), "name", 1, 7, "a list", "text"},
    {"UnknownKind", with_line(2, "model: {kind: gtp}"), "model.kind", 2, 15, "gtp", "mean gpt"},
    {"UnsetIsNoKind", with_line(2, "model: {kind: unset}"), "model.kind", 2, 15, "unset",
     "torchscript"},
    {"UnknownDevice", with_line(10, "resources: {device: gpu}"), "resources.device", 10, 21, "gpu",
     "one of cpu, cuda"},
    {"UnknownPrecision", with_line(7, "  micro_batch_size: 4\n  precision: fp16"),
     "train.precision", 8, 14, "fp16", "one of fp32, tf32, bf16"},
    {"GradientsInTf32", with_line(7, "  micro_batch_size: 4\n  communicate_in: tf32"),
     "train.communicate_in", 8, 19, "tf32", "one of fp32, bf16"},
    // Units
    {"DurationWithoutUnit", with_line(11, "checkpoint: {interval: 300}"), "checkpoint.interval", 11,
     24, "without a unit", "such as"},
    {"DurationOfUnknownUnit", with_line(11, "checkpoint: {interval: 5min}"), "checkpoint.interval",
     11, 24, "min", "such as"},
    {"DurationBelowItsLeast", with_line(11, "checkpoint: {interval: 1ms}"), "checkpoint.interval",
     11, 24, "1ms", "100ms"},
    {"NegativeDuration", with_line(11, "checkpoint: {interval: -5m}"), "checkpoint.interval", 11,
     24, "-5m", "100ms"},
    {"UnlimitedWhereItIsNot", with_line(11, "checkpoint: {interval: unlimited}"),
     "checkpoint.interval", 11, 24, "unlimited", "duration"},
    {"MinusOneForUnlimited", with_line(11, "recovery: {max_failures: -1}"), "recovery.max_failures",
     11, 26, "-1", "unlimited"},
    {"SizeWithoutUnit", with_line(7, "  micro_batch_size: 4\n  bucket_size: 65536"),
     "train.bucket_size", 8, 16, "without a unit", "KiB"},
    {"SizeOfDecimalUnit", with_line(7, "  micro_batch_size: 4\n  bucket_size: 1MB"),
     "train.bucket_size", 8, 16, "MB", "MiB"},
    {"SizeAboveItsMost", with_line(7, "  micro_batch_size: 4\n  bucket_size: 1TiB"),
     "train.bucket_size", 8, 16, "1TiB", "4GiB"},
    // Ranges
    {"RangeUpsideDown", with_line(10, "resources: {workers_per_node: 4:1}"),
     "resources.workers_per_node", 10, 31, "4:1", "MIN:MAX"},
    {"RangeOfThree", with_line(10, "resources: {workers_per_node: 1:2:3}"),
     "resources.workers_per_node", 10, 31, "1:2:3", "MIN:MAX"},
    {"RangeWithoutEnd", with_line(10, "resources: {workers_per_node: \"1:\"}"),
     "resources.workers_per_node", 10, 31, "1:", "MIN:MAX"},
    {"RangeFromZero", with_line(10, "resources: {workers_per_node: 0:2}"),
     "resources.workers_per_node", 10, 31, "0:2", "from 1"},
    {"MoreNodesThanThereCanBe", with_line(10, "resources: {num_nodes: 20000}"),
     "resources.num_nodes", 10, 24, "20000", "10000"},
    // Unknown keys
    {"MisspelledKey", with_line(5, "  max_step: 300\n  max_steps: 300"), "train.max_step", 5, 3,
     "unknown", "train.max_steps"},
    {"KeyWithDashes", with_line(5, "  max-steps: 300\n  max_steps: 300"), "train.max-steps", 5, 3,
     "unknown", "mean train.max_steps?"},
    {"KeyOfOtherTools", with_line(10, "resources: {num_workers: 2}"), "resources.num_workers", 10,
     13, "unknown", "resources.workers_per_node"},
    {"KeyOfOtherToolsElsewhere", with_line(11, "num_workers: 2"), "num_workers", 11, 1, "unknown",
     "resources.num_nodes"},
    {"KeyOfAnotherSection", with_line(5, "  max_steps: 300\n  lr: 1"), "train.lr", 6, 3, "unknown",
     "train.optimizer.lr"},
    {"MisspelledSection", with_line(11, "recovry: {}"), "recovry", 11, 1, "unknown",
     "mean recovery?"},
    {"LikeNothing", with_line(11, "qqqqqqqq: {}"), "qqqqqqqq", 11, 1, "unknown", "recovery"},
    {"MergeKeyInQuotes", with_line(11, "\"<<\": {}"), "<<", 11, 1, "unknown", "recovery"},
    // Duplicate keys
    {"DuplicateAtTheTop", with_line(11, "name: again"), "name", 11, 1, "second", "once"},
    {"DuplicateInASection", with_line(7, "  micro_batch_size: 4\n  max_steps: 300"),
     "train.max_steps", 8, 3, "second", "line 5"},
    {"DuplicateInAFlowMap", with_line(8, "  optimizer: {kind: adamw, lr: 1, lr: 1}"),
     "train.optimizer.lr", 8, 35, "second", "once"},
    {"DuplicateInAnAnchor",
     with_line(11, "x-a: &a {max_failures: 1, max_failures: 2}\nrecovery: *a"), "x-a.max_failures",
     11, 27, "second", "once"},
    {"TwoMergeKeys", with_line(11, "recovery: {<<: {backoff: 1s}, <<: {backoff: 2s}}"),
     "recovery.<<", 11, 31, "second", "once"},
    // Out of range
    {"ZeroSteps", with_line(5, "  max_steps: 0"), "train.max_steps", 5, 14, "0", "from 1"},
    {"LearningRateOfZero", with_line(8, "  optimizer: {kind: adamw, lr: 0}"), "train.optimizer.lr",
     8, 32, "0", "above 0"},
    {"BetaOfOne", with_line(8, "  optimizer: {kind: adamw, lr: 1, betas: [0.9, 1]}"),
     "train.optimizer.betas[1]", 8, 48, "1", "below 1"},
    {"MomentumOfOne", with_line(8, "  optimizer: {kind: sgd, lr: 1, momentum: 1.0}"),
     "train.optimizer.momentum", 8, 43, "1.0", "below 1"},
    {"DropoutOfOne", with_line(2, "model: {kind: gpt, dropout: 1}"), "model.dropout", 2, 29, "1",
     "0.99"},
    {"NegativeSeed", with_line(7, "  micro_batch_size: 4\n  seed: -1"), "train.seed", 8, 9, "-1",
     "from 0"},
    // Missing keys
    {"MissingName", with_line(1, ""), "name", 0, 0, "nothing", "required"},
    {"MissingSection", with_line(2, ""), "model", 0, 0, "nothing", "required"},
    {"MissingKind", with_line(3, "data: {path: data.txt}"), "data.kind", 3, 1, "nothing",
     "one of text"},
    {"MissingKeyOfASection", with_line(5, ""), "train.max_steps", 4, 1, "nothing", "whole number"},
    {"MissingLearningRate", with_line(8, "  optimizer: {kind: adamw}"), "train.optimizer.lr", 8, 3,
     "nothing", "number"},
    {"TextWithoutPath", with_line(3, "data: {kind: text}"), "data.path", 3, 1, "nothing", "path"},
    {"IdxWithoutLabels",
     with_lines(2, 3, "model: {kind: mlp}\ndata: {kind: idx, images: images.gz}"), "data.labels", 3,
     1, "nothing", "path"},
    {"TorchscriptWithoutPath", with_line(2, "model: {kind: torchscript}"), "model.path", 2, 1,
     "nothing", "path"},
    // Keys of another kind
    {"KeyOfAnotherModel", with_line(2, "model: {kind: gpt, hidden: [1]}"), "model.hidden", 2, 20,
     "gpt", "mlp"},
    {"KeyOfAnotherOptimizer", with_line(8, "  optimizer: {kind: sgd, lr: 1, betas: [0.9, 0.9]}"),
     "train.optimizer.betas", 8, 33, "sgd", "adamw"},
    {"KeyOfAnotherSchedule", with_line(9, "  schedule: {min_lr: 1e-4}"), "train.schedule.min_lr", 9,
     14, "constant", "cosine"},
    // Combinations
    {"BatchNotDivisible", with_line(7, "  micro_batch_size: 5"), "train.micro_batch_size", 7, 3,
     "5", "divides"},
    {"MoreWorkersThanMicroBatches", with_line(10, "resources: {workers_per_node: 1:9}"),
     "resources.workers_per_node", 10, 13, "9", "at most 8"},
    {"HeadsDoNotDivideWidth", with_line(2, "model: {kind: gpt, n_head: 3}"), "model.n_head", 2, 20,
     "128", "divides"},
    {"WarmUpLongerThanTheJob", with_line(5, "  max_steps: 40"), "train.schedule.warmup_steps", 9,
     28, "50", "40"},
    {"LeastRateAboveThePeak", with_line(8, "  optimizer: {kind: adamw, lr: 1e-5}"),
     "train.schedule.min_lr", 9, 46, "1e-04", "1e-05"},
    {"GptOnImages", with_line(3, "data: {kind: idx, images: images.gz, labels: labels.gz}"),
     "data.kind", 3, 8, "idx", "text"},
    {"ResnetOnText", with_line(2, "model: {kind: resnet}"), "data.kind", 3, 8, "text", "idx"},
    {"ResnetOnFlatSamples",
     with_lines(2, 3, "model: {kind: resnet}\ndata: {kind: synthetic, shape: [5]}"), "data.shape",
     3, 25, "1 numbers", "3"},
    {"TooFewTokensForBytes", with_line(2, "model: {kind: gpt, vocab_size: 128}"),
     "model.vocab_size", 2, 20, "128", "256"},
    {"HeldOutImagesWithoutLabels",
     with_lines(2, 3,
                "model: {kind: mlp}\ndata: {kind: idx, images: images.gz, labels: labels.gz, "
                "eval_images: images.gz}"),
     "data.eval_images", 3, 57, "one of", "both"},
    {"Tf32OnProcessors", with_line(7, "  micro_batch_size: 4\n  precision: tf32"),
     "train.precision", 8, 3, "tf32 with resources.device: cpu", "wants resources.device: cuda"},
    {"Bf16OnProcessors", with_lines(7, 7, "  micro_batch_size: 4\n  precision: bf16"),
     "train.precision", 8, 3, "bf16 with resources.device: cpu", "wants resources.device: cuda"},
    {"GradientsInBf16OnProcessors", with_line(7, "  micro_batch_size: 4\n  communicate_in: bf16"),
     "train.communicate_in", 8, 3, "bf16 with resources.device: cpu",
     "wants resources.device: cuda"},
    {"GpusForProcessors", with_line(10, "resources: {devices: [0, 1]}"), "resources.devices", 10,
     13, "GPUs for a job with resources.device: cpu", "resources.device: cuda"},
    {"GpuOfTorchsName", with_line(10, "resources: {device: cuda, devices: [0, \"cuda:1\"]}"),
     "resources.devices", 10, 27, "cuda:1", "nvidia-smi"},
    {"GpuByPartOfItsUuid", with_line(10, "resources: {device: cuda, devices: [GPU-1b2c3d4e]}"),
     "resources.devices", 10, 27, "GPU-1b2c3d4e", "whole GPU-... or MIG-... UUID"},
    {"NameWithASlash", with_line(1, "name: a/b"), "name", 1, 1, "a/b", "letters"},
    {"NameThatIsAFolderUp", with_line(1, "name: .."), "name", 1, 1, "..", "first a letter"},
    {"NameLikeAnOption", with_line(1, "name: -x"), "name", 1, 1, "-x", "first a letter"},
    {"UnknownStore", with_line(11, "checkpoint: {to: \"gs://bucket\"}"), "checkpoint.to", 11, 14,
     "gs", "s3://"},
    {"BucketWithoutAName", with_line(11, "checkpoint: {to: \"s3:///prefix\"}"), "checkpoint.to", 11,
     14, "s3:///prefix", "bucket"},
    {"EndpointWithoutScheme",
     with_line(11, "checkpoint: {to: \"s3://models\", s3: {endpoint: minio}}"),
     "checkpoint.s3.endpoint", 11, 38, "minio", "https://"},
    {"PlainHttpToElsewhere",
     with_line(11, "checkpoint: {to: \"s3://models\", s3: {endpoint: \"http://minio:9000\"}}"),
     "checkpoint.s3.endpoint", 11, 38, "http://minio:9000", "allow_http"},
    {"PartsThatAreTooSmall", with_line(11, "checkpoint: {s3: {part_size: 1MiB}}"),
     "checkpoint.s3.part_size", 11, 30, "1MiB", "8MiB"},
    {"NoticesOfAFileWithoutOne", with_line(11, "recovery: {notices: [file]}"), "recovery.notices",
     11, 12, "file", "notice_file"},
    {"NoticesTakenAtNoAddress", with_line(11, "recovery: {notice_listen: here}"),
     "recovery.notice_listen", 11, 12, "here", "ADDRESS:PORT"},
    {"NoticesOfNoCloud", with_line(11, "recovery: {notice_endpoints: [\"moon=http://x\"]}"),
     "recovery.notice_endpoints", 11, 12, "moon", "SOURCE=URL"},
    // Files
    {"MissingFile", with_line(3, "data: {kind: text, path: gone.txt}"), "data.path", 3, 20,
     "does not exist", "job file's folder"},
    {"FolderForAFile", with_line(3, "data: {kind: text, path: .}"), "data.path", 3, 20, "folder",
     "file"},
    {"DeviceForAFile", with_line(3, "data: {kind: text, path: /dev/null}"), "data.path", 3, 20,
     "regular", "file"},
    {"FileShorterThanASample", with_line(2, "model: {kind: gpt, block_size: 1000}"), "data.path", 3,
     20, "1000 tokens", "more than block_size"},
    {"OddNumberOfTokenBytes", with_line(3, "data: {kind: tokens, path: odd.bin}"), "data.path", 3,
     22, "7 bytes", "uint16"},
    // Expansion
    {"VariableThatIsNotSet", with_line(3, "data: {kind: text, path: $SUREFOOT_TEST_UNSET/x}"),
     "data.path", 3, 26, "SUREFOOT_TEST_UNSET", "set"},
    {"DollarBeforeNothing", with_line(11, "checkpoint: {to: \"a$\"}"), "checkpoint.to", 11, 18, "$",
     "$$"},
    {"BraceThatIsNotClosed", with_line(11, "checkpoint: {to: \"${HOME\"}"), "checkpoint.to", 11, 18,
     "${HOME", "$$"},
    {"EmptyText", with_line(11, "checkpoint: {to: \"\"}"), "checkpoint.to", 11, 18, "empty",
     "one character"},
    {"LineFeedInAText", with_line(11, "checkpoint: {to: \"a\\nb\"}"), "checkpoint.to", 11, 18,
     "x0a", "control"},
    // Machines
    {"HostWithTwoWords", with_line(10, "resources: {hosts: [a, b c]}"), "resources.hosts", 10, 13,
     "b c", "USER@NAME"},
    {"HostThatSshWouldTakeForAnOption", with_line(10, "resources: {hosts: [-oProxyCommand=x]}"),
     "resources.hosts", 10, 13, "-oProxyCommand=x", "USER@NAME"},
    {"HostsAndAHostfile", with_line(10, "resources: {hosts: [a], hostfile: hosts.txt}"),
     "resources.hostfile", 10, 25, "2 of", "one of them"},
    {"MoreNodesThanHosts", with_line(10, "resources: {hosts: [a, b], num_nodes: 3}"),
     "resources.num_nodes", 10, 28, "at least 3", "at most 2"},
    {"AddressForANetwork", with_line(10, "resources: {network: 10.0.0.1}"), "resources.network", 10,
     13, "10.0.0.1", "CIDR"},
    {"TooFewPorts", with_line(10, "resources: {ports: 4000-4001}"), "resources.ports", 10, 13,
     "4000-4001", "at least 8"},
    // YAML
    {"UnknownAlias", with_line(10, "resources: *gone"), "", 10, 12, "gone", ""},
    {"UnclosedBracket", with_line(2, "model: {kind: gpt"), "", 3, 5, "YAML", ""},
    {"TabIndent", with_line(5, "\tmax_steps: 300"), "", 5, 1, "tab", "spaces"},
    {"TwoDocuments", with_line(11, "---\nname: b"), "", 12, 1, "second document", "one"},
    {"MergeOfANumber", with_line(11, "recovery: {<<: 5}"), "recovery.<<", 11, 12, "5",
     "alias of a map"},
    {"MergeOfAListOfNumbers", with_line(11, "recovery: {<<: [5]}"), "recovery.<<", 11, 12, "list",
     "alias of a map"},
    {"ListAsKey", with_line(11, "recovery: {[a]: 5}"), "recovery", 11, 12, "list", "word"},
    {"UnknownTag", with_line(1, "name: !python right"), "name", 1, 7, "python", "!!str"},
    {"AliasInsideItself", with_line(11, "recovery: &a {backoff: *a}"), "recovery.backoff", 11, 24,
     "alias", "inside"},
    {"WholeFileIsAList", "- a\n", "", 1, 1, "a list", "name, model"},
    {"WholeFileIsAWord", "hello\n", "", 1, 1, "hello", "name, model"},
    {"EmptyFile", "", "", 0, 0, "empty", "name, model"},
    {"OnlyAComment", "# nothing yet\n", "", 0, 0, "empty", "name, model"},
    {"NotUtf8", with_line(10, "# caf\xE9"), "", 10, 1, "not UTF-8", "UTF-8"},
    {"BinaryFile", std::string("name: x\nfoo\0bar", 15), "", 2, 1, "zero byte", "UTF-8"},
    // --set
    {"SetOfAnUnknownKey",
     kRightJob,
     "train.max_step",
     0,
     0,
     "unknown",
     "train.max_steps",
     {"train.max_step=5"}},
    {"SetOfAWrongType",
     kRightJob,
     "train.max_steps",
     0,
     0,
     "x",
     "whole number",
     {"train.max_steps=x"}},
    {"SetWithoutValue",
     kRightJob,
     "train.max_steps",
     0,
     0,
     "train.max_steps",
     "KEY=VALUE",
     {"train.max_steps"}},
    {"SetWithoutKey", kRightJob, "", 0, 0, "=5", "KEY=VALUE", {"=5"}},
    {"SetWithAHoleInItsKey",
     kRightJob,
     "train..max_steps",
     0,
     0,
     "train..",
     "KEY=VALUE",
     {"train..max_steps=5"}},
    {"SetToNothing",
     kRightJob,
     "train.max_steps",
     0,
     0,
     "nothing",
     "whole number",
     {"train.max_steps="}},
    {"SetOfBrokenYaml", kRightJob, "train", 0, 0, "YAML", "", {"train={a"}},
    {"SetWithADuplicateKey",
     kRightJob,
     "recovery.backoff",
     0,
     0,
     "second",
     "once",
     {"recovery={backoff: 1s, backoff: 2s}"}},
    {"SetBelowANumber",
     kRightJob,
     "train.max_steps.x",
     0,
     0,
     "holds a value",
     "map",
     {"train.max_steps.x=5"}},
    {"SetOfASectionToAList", kRightJob, "train", 0, 0, "a list", "a map", {"train=[1]"}},
    // clang-format on
};

class WrongJobFile : public testing::TestWithParam<Case> {
 protected:
  JobFolder folder_;
};

TEST_P(WrongJobFile, HasExactlyThisFault) {
  const Case& expected = GetParam();
  ::unsetenv("SUREFOOT_TEST_UNSET");
  const LoadOutcome outcome = folder_.load(expected.text, expected.sets);
  ASSERT_THAT(outcome.faults, SizeIs(1)) << texts(outcome.faults);
  const Fault& fault = outcome.faults.front();
  SCOPED_TRACE(fault.text());
  EXPECT_EQ(fault.key, expected.key);
  EXPECT_EQ(fault.line, expected.line);
  EXPECT_EQ(fault.column, expected.column);
  EXPECT_THAT(fault.message, HasSubstr(expected.found));
  EXPECT_THAT(fault.message, HasSubstr(expected.allowed));
  const std::string file = (folder_.path() / "job.yaml").string();
  EXPECT_EQ(fault.file, expected.sets.empty() ? file : "--set " + expected.sets.front());
}

INSTANTIATE_TEST_SUITE_P(JobFaults, WrongJobFile, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

class JobFaults : public testing::Test {
 protected:
  JobFolder folder_;
};

TEST_F(JobFaults, AreAllFoundInOneGoInTheOrderOfTheFile) {
  const LoadOutcome outcome = folder_.load(R"(name: a b
modle: {kind: gpt}
model: {kind: gpt, n_head: 3, hidden: [5]}
data: {kind: text, path: gone.txt}
train:
  max_steps: fast
  micro_batch_size: 3
  global_batch_size: 32
  micro_batch_size: 3
  optimizer: {kind: adam, lr: -1}
checkpoint: {interval: 300}
recovery: 5
)");
  std::vector<std::pair<int, std::string>> places;
  for (const Fault& fault : outcome.faults) places.emplace_back(fault.line, fault.key);
  const std::vector<std::pair<int, std::string>> expected = {{1, "name"},
                                                             {2, "modle"},
                                                             {3, "model.n_head"},
                                                             {3, "model.hidden"},
                                                             {4, "data.path"},
                                                             {6, "train.max_steps"},
                                                             {9, "train.micro_batch_size"},
                                                             {10, "train.optimizer.kind"},
                                                             {10, "train.optimizer.lr"},
                                                             {11, "checkpoint.interval"},
                                                             {12, "recovery"}};
  EXPECT_EQ(places, expected) << texts(outcome.faults);
}

TEST_F(JobFaults, CountColumnsInCharacters) {
  const LoadOutcome outcome =
      folder_.load(with_line(3, "data: {kind: text, path: data.txt, holdout: 0.1}")
                       .replace(0, 5, "x-\xC3\xA9\xC3\xA9: {\xC3\xA9: 1, b: 1, b: 2}\nname:"));
  ASSERT_THAT(outcome.faults, SizeIs(1)) << texts(outcome.faults);
  EXPECT_EQ(outcome.faults[0].line, 1);
  EXPECT_EQ(outcome.faults[0].column, 20);
}

TEST_F(JobFaults, NameAMissingFileAFolderAndAPipe) {
  EXPECT_THAT(load_job(folder_.path() / "gone.yaml", {}).faults, SizeIs(1));
  EXPECT_THAT(load_job(folder_.path(), {}).faults, SizeIs(1));
  EXPECT_THAT(load_job("/dev/zero", {}).faults, SizeIs(1));
}

TEST_F(JobFaults, OfALargeFileAreNotLookedFor) {
  const std::string right = kRightJob;
  EXPECT_THAT(
      folder_.load(right + "# " + std::string(1'000'000 - right.size() - 3, '.') + "\n").faults,
      IsEmpty());
  const LoadOutcome outcome =
      folder_.load(right + "# " + std::string(1'000'000 - right.size() - 2, '.') + "\n");
  ASSERT_THAT(outcome.faults, SizeIs(1));
  EXPECT_THAT(outcome.faults[0].message, HasSubstr("1000000"));
}

TEST_F(JobFaults, OfAliasesThatMultiplyAreFoundBeforeTheyDo) {
  std::string bomb = "x-0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 40; ++i) {
    bomb += fmt::format("x-{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) bomb += fmt::format("{}*a{}", k > 0 ? ", " : "", i - 1);
    bomb += "]\n";
  }
  const LoadOutcome outcome = folder_.load(bomb + kRightJob);
  ASSERT_THAT(outcome.faults, SizeIs(1)) << texts(outcome.faults);
  EXPECT_THAT(outcome.faults[0].message, HasSubstr("10000 nodes"));
  EXPECT_EQ(outcome.faults[0].line, 4);  // 11 + 111 + 1111 nodes fit, the next does not
}

TEST_F(JobFaults, OfAMergeThatMultipliesAreFoundBeforeItDoes) {
  std::string bomb = "x-0: &a0 {b: 1}\n";
  for (int i = 1; i < 60; ++i)
    bomb += fmt::format("x-{}: &a{} {{<<: *a{}, c{}: *a{}}}\n", i, i, i - 1, i, i - 1);
  EXPECT_THAT(folder_.load(bomb + kRightJob).faults, SizeIs(1));
}

TEST_F(JobFaults, AreNotSeenUpToTenThousandNodes) {
  // The right job has 41 nodes: maps, keys and values. A list of n numbers under a key has n + 2.
  const auto padded = [](int count) {
    std::string out = kRightJob + std::string("x-pad: [");
    for (int i = 0; i < count; ++i) out += "1,";
    return out + "]\n";
  };
  int fits = 0;
  for (int count = 9955; count < 9960; ++count) {
    if (folder_.load(padded(count)).faults.empty()) fits = count;
  }
  EXPECT_EQ(fits + 2 + 41, 10'000);
}

TEST_F(JobFaults, OfDeepNestingEndTheParse) {
  for (const int depth : {100, 1000, 100'000}) {
    const std::string nest = "x-a: " + std::string(static_cast<std::size_t>(depth), '[') + "\n";
    EXPECT_THAT(folder_.load(nest + kRightJob).faults, SizeIs(1)) << depth;
  }
  std::string aliases = "x-0: &a0 [1]\n";
  for (int i = 1; i < 90; ++i) aliases += fmt::format("x-{}: &a{} [*a{}]\n", i, i, i - 1);
  EXPECT_THAT(folder_.load(aliases + kRightJob).faults, SizeIs(1));
}

TEST_F(JobFaults, OfTheFileAreNotHiddenByASetBelowThem) {
  const LoadOutcome outcome =
      folder_.load(with_line(10, "resources: 2"), {"resources.workers_per_node=2"});
  ASSERT_THAT(outcome.faults, SizeIs(2)) << texts(outcome.faults);
  EXPECT_EQ(outcome.faults[0].line, 10);
  EXPECT_EQ(outcome.faults[1].key, "resources.workers_per_node");
}

TEST_F(JobFaults, OfTheNameAreNotRepeatedWhereItIsExpanded) {
  EXPECT_THAT(folder_.load(with_line(1, "name: [a]"), {"checkpoint.to=/scratch/{name}"}).faults,
              SizeIs(1));
  EXPECT_THAT(folder_.load(with_line(1, ""), {"checkpoint.to=/scratch/{name}"}).faults, SizeIs(1));
}

TEST_F(JobFaults, InACombinationNameTheOptionThatMadeIt) {
  const LoadOutcome outcome =
      folder_.load(kRightJob, {"resources.workers_per_node=3", "train.micro_batch_size=16"});
  ASSERT_THAT(outcome.faults, SizeIs(1)) << texts(outcome.faults);
  EXPECT_EQ(outcome.faults[0].file, "--set resources.workers_per_node=3");
}

TEST(Fault, ReadsAsOneLine) {
  EXPECT_EQ((Fault{"job.yaml", 12, 9, "train.optimizer.lr", "found x, allowed is y"}.text()),
            "job.yaml:12:9: train.optimizer.lr: found x, allowed is y");
  EXPECT_EQ((Fault{"job.yaml", 0, 0, "", "found no such file"}.text()),
            "job.yaml: found no such file");
}

}  // namespace
}  // namespace surefoot
