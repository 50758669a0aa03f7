// Performs the effects of one Publisher (commit.h) over a store: the driver behind
// CheckpointStore::try_publish.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.h"

namespace surefoot {

class SetPublisher {
 public:
  SetPublisher(CheckpointStore& checkpoints, Store& store, const std::string& job_id, Step step,
               Attempt attempt, int of, const Control& control)
      : checkpoints_(checkpoints),
        store_(store),
        job_id_(job_id),
        step_(step),
        attempt_(attempt),
        of_(of),
        control_(control) {}

  // Until the publisher is done, or told to stop.
  CheckpointStore::Publish run(PublishDecision decision);

 private:
  PublishEvent failed(Error why);
  PublishEvent perform(const ListSet&);
  PublishEvent perform(const ReadHeader& effect);
  PublishEvent perform(const PutManifest&);
  PublishEvent perform(const ReadManifest&);
  PublishEvent perform(const VerifyOther&);
  PublishEvent perform(const RemoveManifest&);
  PublishEvent perform(const PublishDone&) { return StoreFailed{}; }
  Status check(std::size_t part);
  [[nodiscard]] bool goes_first(const ParsedName& part) const;

  CheckpointStore& checkpoints_;
  Store& store_;
  const std::string& job_id_;
  Step step_;
  Attempt attempt_;
  int of_;
  const Control& control_;
  std::vector<ObjectInfo> parts_;   // as last listed, by part number
  std::vector<StoredPart> stored_;  // headers read so far
  std::string manifest_;            // made of them
  std::string details_;             // what the store or a check said, for the reason
};

}  // namespace surefoot
