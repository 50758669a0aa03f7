// surefoot-node: the checkpoint service of one job on this node (checkpoint/service.h), as a
// process of its own.
//
//   surefoot-node JOB.yaml --dir DIR [--set KEY=VALUE]... [--supervised]
//                 [--listen ADDRESS] [--keys-from-stdin]
//
// Started detached by `surefoot run` or by the first worker of a node; then the keys for the
// supervisor's side are those in DIR/service.keys, once they are there. Started from another
// machine, with --keys-from-stdin, it reads them from standard input and answers with one line on
// standard output, "endpoint tcp://ADDRESS:PORT": its own, or that of the service of this job that
// runs here already.
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
