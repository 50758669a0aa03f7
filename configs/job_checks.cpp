#include "configs/job_checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "configs/devices.h"
#include "configs/job.h"
#include "configs/machines.h"
#include "configs/notices.h"
#include "configs/store_url.h"
#include "configs/units.h"

namespace surefoot::configs {
namespace {

// Reports at the first of `keys` that the file has, since that is what the user can change.
class Checker {
 public:
  explicit Checker(Reading& reading) : reading_(reading) {}

  template <class... Args>
  void require(bool holds, std::initializer_list<const char*> keys,
               fmt::format_string<Args...> format, Args&&... args) {
    const auto is_broken = [this](const char* key) { return reading_.has_problem(key); };
    if (holds || std::any_of(keys.begin(), keys.end(), is_broken)) return;
    const auto is_found = [this](const char* key) { return reading_.found.contains(key); };
    const char* const* at = std::find_if(keys.begin(), keys.end(), is_found);
    const std::string key = at == keys.end() ? *keys.begin() : *at;
    reading_.problems.push_back(
        {reading_.place_of(key), key, fmt::format(format, std::forward<Args>(args)...)});
  }

 private:
  Reading& reading_;
};

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// The name is a folder's name and part of object names, so nothing that a shell, a URL or a file
// system could take in another way.
void check_name(const config::Job& job, Checker& check) {
  static constexpr std::size_t kLongest = 100;
  const std::string& name = job.name();
  const auto is_allowed = [](char c) {
    return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-';
  };
  check.require(!name.empty() && name.size() <= kLongest && is_letter_or_digit(name.front()) &&
                    std::all_of(name.begin(), name.end(), is_allowed),
                {"name"},
                "found {}, allowed are up to {} letters, digits, '.', '_' and '-', the first a "
                "letter or digit",
                quote(name), kLongest);
}

void check_model_and_data(const config::Job& job, Checker& check) {
  const config::Model& model = job.model();
  const config::Data& data = job.data();
  const std::string model_kind = chosen_kind(model);
  const std::string data_kind = chosen_kind(data);
  const bool is_gpt = model.kind() == config::Model::gpt;
  const bool is_of_tokens =
      data.kind() == config::Data::text || data.kind() == config::Data::tokens;
  if (is_gpt) {
    check.require(model.n_head() > 0 && model.n_embd() % model.n_head() == 0,
                  {"model.n_head", "model.n_embd"},
                  "found n_embd = {} and n_head = {}, allowed is an n_head that divides n_embd",
                  model.n_embd(), model.n_head());
    check.require(data.kind() != config::Data::idx, {"data.kind", "model.kind"},
                  "found {} data for a gpt model, allowed are text, tokens, synthetic", data_kind);
  }
  if (model.kind() == config::Model::mlp || model.kind() == config::Model::resnet) {
    check.require(!is_of_tokens, {"data.kind", "model.kind"},
                  "found {} data for a {} model, allowed are idx, synthetic", data_kind,
                  model_kind);
  }
  if (model.kind() == config::Model::resnet && data.kind() == config::Data::synthetic) {
    check.require(
        data.shape_size() == 3, {"data.shape", "data.kind"},
        "found a shape of {} numbers for a resnet model, allowed are 3: channels, rows, columns",
        data.shape_size());
  }
  if (data.kind() == config::Data::text) {
    check.require(model.vocab_size() >= 256 || model.vocab_size() == 0,
                  {"model.vocab_size", "data.kind", "model.kind"},
                  "found {}, allowed with text data is at least 256, one for each byte",
                  model.vocab_size());
  }
  if (data.kind() == config::Data::idx) {
    check.require(data.eval_images().empty() == data.eval_labels().empty(),
                  {data.eval_images().empty() ? "data.eval_labels" : "data.eval_images",
                   "data.eval_images", "data.eval_labels"},
                  "found one of eval_images and eval_labels, allowed are both or neither");
  }
}

void check_train(const config::Train& train, Checker& check) {
  const std::int64_t global = train.global_batch_size();
  const std::int64_t micro = train.micro_batch_size();
  check.require(micro > 0 && global % micro == 0,
                {"train.micro_batch_size", "train.global_batch_size"},
                "found global_batch_size = {} and micro_batch_size = {}, allowed is a "
                "micro_batch_size that divides global_batch_size",
                global, micro);
  if (train.schedule().kind() != config::Schedule::cosine) return;
  const std::int64_t warmup = train.schedule().warmup_steps();
  check.require(warmup <= train.max_steps(),
                {"train.schedule.warmup_steps", "train.max_steps", "train.schedule.kind"},
                "found {}, allowed with the cosine schedule is at most max_steps = {}", warmup,
                train.max_steps());
  check.require(train.schedule().min_lr() <= train.optimizer().lr(),
                {"train.schedule.min_lr", "train.optimizer.lr", "train.schedule.kind"},
                "found {}, allowed is at most the optimizer's lr = {}",
                format_number(train.schedule().min_lr()), format_number(train.optimizer().lr()));
}

// What only GPUs do, and which of them.
void check_device(const config::Job& job, Checker& check) {
  const config::Resources& resources = job.resources();
  const bool on_gpus = resources.device() == config::Resources::cuda;
  check.require(on_gpus || job.train().precision() == config::Train::fp32,
                {"train.precision", "resources.device"},
                "found {} with resources.device: cpu, allowed is fp32 there; {} wants "
                "resources.device: cuda",
                config::Train::Precision_Name(job.train().precision()),
                config::Train::Precision_Name(job.train().precision()));
  check.require(on_gpus || job.train().communicate_in() == config::Gradients::fp32,
                {"train.communicate_in", "resources.device"},
                "found {} with resources.device: cpu, allowed is fp32 there; {} wants "
                "resources.device: cuda",
                config::Gradients::Format_Name(job.train().communicate_in()),
                config::Gradients::Format_Name(job.train().communicate_in()));
  check.require(on_gpus || resources.devices().empty(), {"resources.devices", "resources.device"},
                "found GPUs for a job with resources.device: cpu, allowed are they with "
                "resources.device: cuda");
  for (int i = 0; i < resources.devices_size(); ++i) {
    const auto device = parse_device(resources.devices(i));
    check.require(device.has_value(), {"resources.devices"}, "{}",
                  device ? "" : device.error().message);
  }
}

// A worker without a micro-batch would have nothing to do.
void check_workers(const config::Job& job, Checker& check) {
  const std::int64_t micro = job.train().micro_batch_size();
  const std::int64_t micro_batches = micro > 0 ? job.train().global_batch_size() / micro : 0;
  const std::int64_t nodes = job.resources().num_nodes().min();
  const std::int64_t workers = nodes * job.resources().workers_per_node().max();
  check.require(workers <= micro_batches,
                {"resources.workers_per_node", "resources.num_nodes", "train.micro_batch_size",
                 "train.global_batch_size"},
                "found at least {} workers (num_nodes times workers_per_node), allowed are at most "
                "{}: a step has that many micro-batches, "
                "global_batch_size / micro_batch_size = {} / {}",
                workers, micro_batches, job.train().global_batch_size(), micro);
}

// Where the machines come from, and how they reach each other.
void check_machines(const config::Resources& resources, Checker& check) {
  const bool by_file = !resources.hostfile().empty();
  const bool by_command = !resources.discovery_command().empty();
  const int sources =
      static_cast<int>(resources.hosts_size() > 0) + static_cast<int>(by_file) + by_command;
  check.require(
      sources <= 1,
      {by_command ? "resources.discovery_command" : "resources.hostfile", "resources.hosts"},
      "found {} of hosts, hostfile and discovery_command, allowed is one of them", sources);
  const std::vector<std::string> entries(resources.hosts().begin(), resources.hosts().end());
  const auto hosts = parse_hosts(entries);
  check.require(hosts.has_value(), {"resources.hosts"}, "{}", hosts ? "" : hosts.error().message);
  if (hosts && !hosts->empty()) {
    check.require(resources.num_nodes().min() <= static_cast<int>(hosts->size()),
                  {"resources.num_nodes", "resources.hosts"},
                  "found at least {}, allowed are at most {}: hosts names no more",
                  resources.num_nodes().min(), hosts->size());
  }
  if (!resources.network().empty()) {
    const auto network = parse_network(resources.network());
    check.require(network.has_value(), {"resources.network"}, "{}",
                  network ? "" : network.error().message);
  }
  if (!resources.ports().empty()) {
    const auto ports = parse_ports(resources.ports());
    check.require(ports.has_value(), {"resources.ports"}, "{}", ports ? "" : ports.error().message);
  }
}

void check_checkpoint(const config::Checkpoint& checkpoint, Checker& check) {
  const config::Encryption& encryption = checkpoint.encryption();
  check.require(!encryption.key_file().empty() || encryption.old_key_files().empty(),
                {"checkpoint.encryption.old_key_files", "checkpoint.encryption.key_file"},
                "found old keys without a key_file, allowed is both or neither: new checkpoints "
                "would not be encrypted");
  const auto url = parse_store_url(checkpoint.to());
  check.require(url.has_value(), {"checkpoint.to"}, "found {}, {}", quote(checkpoint.to()),
                url ? "" : url.error().message);
  const std::string& text = checkpoint.s3().endpoint();
  if (text.empty()) return;
  const auto endpoint = parse_endpoint(text);
  check.require(endpoint.has_value(), {"checkpoint.s3.endpoint"},
                "found {}, allowed is https://HOST or https://HOST:PORT: {}", quote(text),
                endpoint ? "" : endpoint.error().message);
  if (!endpoint) return;
  check.require(
      endpoint->scheme == "https" || is_loopback(*endpoint) || checkpoint.s3().allow_http(),
      {"checkpoint.s3.endpoint"},
      "found {}, allowed is https:// but for this machine itself; checkpoint.s3.allow_http: true "
      "allows http:// all the same",
      quote(text));
}

void check_notices(const config::Recovery& recovery, Checker& check) {
  const auto named = [&](int source) {
    return std::find(recovery.notices().begin(), recovery.notices().end(), source) !=
           recovery.notices().end();
  };
  check.require(!named(config::Recovery::file) || !recovery.notice_file().empty(),
                {"recovery.notices"},
                "found file, allowed with a recovery.notice_file to wait for");
  const auto listen = parse_listen(recovery.notice_listen());
  check.require(listen.has_value(), {"recovery.notice_listen"}, "found {}, {}",
                quote(recovery.notice_listen()), listen ? "" : listen.error().message);
  for (const std::string& entry : recovery.notice_endpoints()) {
    const auto endpoint = parse_notice_endpoint(entry);
    check.require(endpoint.has_value(), {"recovery.notice_endpoints"}, "found {}, {}", quote(entry),
                  endpoint ? "" : endpoint.error().message);
  }
}

// Nothing, or what is wrong with a file that must be read.
std::string fault_of_file(const std::string& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (status.type() == std::filesystem::file_type::not_found) return "which does not exist";
  if (status.type() == std::filesystem::file_type::directory) return "which is a folder";
  if (status.type() != std::filesystem::file_type::regular)
    return code ? "which cannot be looked at: " + code.message() : "which is no regular file";
  if (::access(path.c_str(), R_OK) != 0) return "which may not be read";
  const auto size = std::filesystem::file_size(path, code);
  return code || size == 0 ? "which is empty" : "";
}

// A sample takes block_size tokens and the one after them. What is held out is the data loader's
// business.
void check_token_file(const config::Job& job, Checker& check) {
  const bool is_of_bytes = job.data().kind() == config::Data::text;
  if (!is_of_bytes && job.data().kind() != config::Data::tokens) return;
  std::error_code code;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(job.data().path(), code));
  if (code) return;
  check.require(is_of_bytes || size % 2 == 0, {"data.path"},
                "found {} of {} bytes, allowed is a file of uint16 tokens, two bytes each",
                quote(job.data().path()), size);
  const std::int64_t tokens = is_of_bytes ? size : size / 2;
  check.require(tokens > job.model().block_size(), {"data.path"},
                "found {} of {} tokens, allowed are more than block_size = {}",
                quote(job.data().path()), tokens, job.model().block_size());
}

}  // namespace

void fill_num_nodes(config::Job& job, Reading& reading) {
  config::Resources& resources = *job.mutable_resources();
  if (reading.found.contains("resources.num_nodes")) return;
  const bool may_change = !resources.hostfile().empty() || !resources.discovery_command().empty();
  const auto hosts = parse_hosts({resources.hosts().begin(), resources.hosts().end()});
  if (may_change) {
    resources.mutable_num_nodes()->set_max(kMaxHosts);
  } else if (hosts && !hosts->empty()) {
    resources.mutable_num_nodes()->set_max(static_cast<int>(hosts->size()));
  }
}

void check_combinations(const config::Job& job, Reading& reading) {
  Checker check(reading);
  check_name(job, check);
  check_model_and_data(job, check);
  check_train(job.train(), check);
  check_device(job, check);
  check_workers(job, check);
  check_machines(job.resources(), check);
  check_checkpoint(job.checkpoint(), check);
  check_notices(job.recovery(), check);
}

void check_data_files(const config::Job& job, Reading& reading) {
  Checker check(reading);
  const auto check_file = [&](const char* key, const std::string& path) {
    if (path.empty()) return;
    const std::string fault = fault_of_file(path);
    check.require(
        fault.empty(), {key},
        "found {}, {}; allowed is a file with data (relative paths start at the job file's folder)",
        quote(path), fault);
  };
  check_file("model.path", job.model().path());
  if (!job.model().from().empty())
    check_file("model.from", starting_weights_file(job.model().from()));
  check_file("data.path", job.data().path());
  check_file("data.eval_path", job.data().eval_path());
  check_file("data.images", job.data().images());
  check_file("data.labels", job.data().labels());
  check_file("data.eval_images", job.data().eval_images());
  check_file("data.eval_labels", job.data().eval_labels());
  check_token_file(job, check);
}

}  // namespace surefoot::configs
