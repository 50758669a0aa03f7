// Combinations of keys that cannot work, though each value alone may be fine.
#pragma once

#include "configs/job.pb.h"
#include "configs/reader.h"

namespace surefoot::configs {

// Where hosts are named and num_nodes is not: from 1 to all of them. Pure.
void fill_num_nodes(config::Job& job, Reading& reading);

// Adds what it finds to reading.problems. A check is left out when one of its keys has a problem
// already. Pure.
void check_combinations(const config::Job& job, Reading& reading);

// Whether the files that the job reads are there, readable and not empty. Blocks on the file
// system.
void check_data_files(const config::Job& job, Reading& reading);

}  // namespace surefoot::configs
