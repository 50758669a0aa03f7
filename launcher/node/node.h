// surefoot-node: the checkpoint service of one job on this node (checkpoint/service.h), as a
// process of its own.
//
//   surefoot-node JOB.yaml --dir DIR [--set KEY=VALUE]... [--supervised]
//   surefoot-node --from-stdin
//   surefoot-node JOB.yaml --look-at-gpus [--workers N]
//   surefoot-node --sample-gpus DEVICE,...
//
// Started detached by `surefoot run`, by the first worker of a node, or by the second form. The
// keys for the supervisor's side are those in <arena folder>/service.keys or DIR/service.keys, once
// they are there; it listens where <arena folder>/listen says, else on 127.0.0.1.
//
// The second form is what runs on a machine over ssh: it reads a StartRequest
// (launcher/nodes/start_request.h) from standard input, places those files, finds the job's service
// or starts it, and leaves with a StartReply on standard output once the service answers. 66: it
// may work later; 64: it will not, and the last line on standard error says why.
//
// The last two are what the service runs for itself, so that a driver which hangs or crashes does
// not do it to the service. The third one prints what keeps that many workers of the job from this
// machine's GPUs (ServiceSettings::look_at_gpus), the fourth what these do (gpu_watch.h).
//
// Log: standard error. Exit codes: 0 it has ended as it should, or another service of the job runs
// already; 64 the job file or the arguments; 66 the machine (arena folder, socket, keys).
#pragma once

#include <functional>

#include "checkpoint/service.h"

namespace surefoot {

// `adjust` may change the settings before the service starts (tests); may be empty.
int run_node(int argc, char** argv, const std::function<void(ServiceSettings&)>& adjust);

}  // namespace surefoot
