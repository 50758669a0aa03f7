// surefoot-cluster: N hosts on this machine, by hand.
//
//   surefoot-cluster up 3                  until `down`; prints them
//   surefoot-cluster exec host0 ssh host1 hostname
//   surefoot-cluster kill host1            without notice
//   surefoot-cluster reboot host1
//   surefoot-cluster freeze | thaw | cut | heal host1
//   surefoot-cluster impair host1 --delay-ms 20 --loss 0.01
//   surefoot-cluster add | list | down
//
// Several clusters at once: --cluster NAME. What a host is: machine.h.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <thread>

#include "common/process.h"
#include "tests/cluster/keeper.h"
#include "tests/cluster/machine.h"
#include "tests/cluster/wire.h"

namespace surefoot::cluster {
namespace {

using nlohmann::json;

constexpr Duration kPatience = std::chrono::seconds(30);

int fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

Result<Packet> ask(const Fd& connection, const json& request, Duration patience = kPatience) {
  SUREFOOT_TRY(send_packet(connection.get(), request));
  SUREFOOT_ASSIGN(Packet packet, receive_packet(connection.get(), now() + patience));
  if (packet.json.contains("error"))
    return error(Code::kRetry, "{}", packet.json["error"].get<std::string>());
  return packet;
}

void print(const json& host) {
  std::printf("%-8s %-12s %s\n", host.value("host", "").c_str(), host.value("address", "").c_str(),
              host.value("state", "").c_str());
}

// One request, and what it is answered with.
int tell(const std::string& name, const json& request) {
  auto connection = connect_to(name);
  if (!connection) return fail(connection.error().message);
  const bool down = request.value("op", "") == "down";
  auto packet = ask(*connection, request);
  if (!packet) return down ? 0 : fail(packet.error().message);
  if (packet->json.contains("hosts")) {
    for (const json& host : packet->json["hosts"]) print(host);
  } else {
    print(packet->json);
  }
  return 0;
}

int up(const std::string& name, int hosts, const std::vector<std::string>& shared) {
  if (const std::string why = machines_unavailable(); !why.empty()) return fail(why);
  if (connect_to(name)) return fail("the cluster is up already: surefoot-cluster down");
  SpawnOptions options;
  options.argv = {program_directory() + "/surefoot-cluster", "--cluster", name, "keep"};
  for (const std::string& folder : shared) {
    options.argv.push_back("--share");
    options.argv.push_back(folder);
  }
  options.detach = true;
  auto keeper = spawn(options);
  if (!keeper) return fail(keeper.error().message);
  for (const Time deadline = now() + kPatience; !connect_to(name);) {
    if (now() > deadline || !is_alive(*keeper)) return fail("the cluster does not come up");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (int i = 0; i < hosts; ++i) {
    if (const int code = tell(name, {{"op", "add"}}); code != 0) return code;
  }
  return 0;
}

int exec(const std::string& name, const std::string& host, const std::vector<std::string>& argv) {
  auto connection = connect_to(name);
  if (!connection) return fail(connection.error().message);
  // A frozen host lets nobody in until it is thawed.
  auto entry = ask(*connection, {{"op", "enter"}, {"host", host}}, std::chrono::hours(24));
  if (!entry || entry->fds.size() != 1)
    return fail(host + ": " + (entry ? "no way in" : entry.error().message));
  return run_inside(entry->fds.front().get(), argv);
}

int run(int argc, char** argv) {
  CLI::App app("Hosts made of namespaces, on one machine");
  app.require_subcommand(1);
  std::string name = "default";
  app.add_option("--cluster", name, "which cluster");
  int code = 0;
  std::string host;
  KeeperOptions keeper;
  int hosts = 3;
  double delay_ms = 0;
  double loss = 0;

  CLI::App* const up_verb = app.add_subcommand("up", "makes a cluster");
  up_verb->add_option("hosts", hosts);
  up_verb->add_option("--share", keeper.shared, "a folder in /tmp, /run or /dev/shm that all see");
  up_verb->callback([&] { code = up(name, hosts, keeper.shared); });
  CLI::App* const exec_verb = app.add_subcommand("exec", "runs a program on a host");
  exec_verb->add_option("host", host)->required();
  exec_verb->prefix_command();  // the rest is the program's, options too
  exec_verb->callback([&] {
    const std::vector<std::string> command = exec_verb->remaining();
    code = command.empty() ? fail("which program?") : exec(name, host, command);
  });
  for (const char* op : {"kill", "reboot", "freeze", "thaw", "cut", "heal"}) {
    CLI::App* const verb = app.add_subcommand(op);
    verb->add_option("host", host)->required();
    verb->callback([&, op] { code = tell(name, {{"op", op}, {"host", host}}); });
  }
  CLI::App* const impair =
      app.add_subcommand("impair", "delays and drops what a host says and hears");
  impair->add_option("host", host)->required();
  impair->add_option("--delay-ms", delay_ms);
  impair->add_option("--loss", loss, "share of frames, 0 to 1");
  impair->callback([&] {
    code = tell(name, {{"op", "impair"}, {"host", host}, {"delay_ms", delay_ms}, {"loss", loss}});
  });
  for (const char* op : {"add", "list", "down"}) {
    app.add_subcommand(op)->callback([&, op] { code = tell(name, {{"op", op}}); });
  }
  CLI::App* const keep_verb = app.add_subcommand("keep")->group("");
  keep_verb->add_option("--parent", keeper.parent);
  keep_verb->add_option("--share", keeper.shared);
  keep_verb->callback([&] {
    keeper.name = name;
    code = keep(keeper);
  });
  CLI11_PARSE(app, argc, argv);
  return code;
}

}  // namespace
}  // namespace surefoot::cluster

int main(int argc, char** argv) {
  return surefoot::cluster::run(argc, argv);
}
