// Reading headers and manifests from a store: shared by checkpoint_store.cpp, part_stream.cpp and
// set_publisher.cpp only.
#pragma once

#include <string>

#include "checkpoint/checkpoint_store.h"

namespace surefoot {

// kRetry when the caller has been told to stop, or the deadline has passed.
Status go_on(const Control& control);
// The bytes before the payload of a part. kCorrupt: there is no such header.
[[nodiscard]] Result<std::string> read_header(Store& store, const ObjectInfo& object,
                                              Time deadline);
// Of whichever job. kNotFound; kCorrupt: damaged, or of another step.
[[nodiscard]] Result<Manifest> read_any_manifest(Store& store, Step step, Time deadline);

}  // namespace surefoot
