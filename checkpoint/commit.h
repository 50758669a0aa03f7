// Rule (commit), as a pure state machine: when a set of parts becomes a checkpoint.
//
//   list the parts of the set and the manifest
//     a part is missing, no manifest   wait: look again later
//     all there, no manifest           read and check all headers, put the manifest if absent
//     a manifest is there              read it
//       of this set                    published, by us or somebody else: list once more
//                                        all parts there: done      a part is gone: withdraw
//       of another set of the step     read all of it back; good: it stands, this set is not needed
//       damaged, or the other set is   replace it, if we own part 0 of the newest attempt, and
//                                        of the smallest set of that (removal goes by name, so
//                                        only one may), else look again later
//
// A publisher may crash anywhere and start anew from `start_publishing`, any number of times;
// several may work on the same set at once. That together with deletion (retention.h) no half
// checkpoint is ever offered and the newest good one never lost is shown exhaustively in
// commit_model_test.cpp.
//
// Pure: no clock, I/O, threads or logging. CheckpointStore performs the effects.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "common/ids.h"

namespace surefoot {

enum class PublishOutcome {
  kPublished,   // the manifest of this set stands, and all its parts were there after it
  kWaiting,     // parts are missing, or somebody else has to act: look again later
  kSuperseded,  // a newer checkpoint has been verified, or a good one of this step by another
                // set stands: nothing to do, ever
  kWithdrawn,   // parts were removed under it: the set is gone
  kRefused,     // a part is damaged or of another set: it will never be published
  kFailed,      // the store failed: look again later
};
[[nodiscard]] std::string_view name(PublishOutcome outcome);

// Effects: what to do next, and the event that tells the outcome.
struct ListSet {};  // -> SetListed
struct ReadHeader {
  int part;
};                         // -> HeaderRead
struct PutManifest {};     // -> ManifestPut
struct ReadManifest {};    // -> ManifestRead
struct VerifyOther {};     // read every byte of the other set's checkpoint -> OtherVerified
struct RemoveManifest {};  // -> ManifestRemoved
struct PublishDone {
  PublishOutcome outcome;
};
using PublishEffect = std::variant<ListSet, ReadHeader, PutManifest, ReadManifest, VerifyOther,
                                   RemoveManifest, PublishDone>;

// Events. What cannot be found out because the store fails is StoreFailed.
struct SetListed {
  std::vector<bool> parts;  // by part number: is it there
  bool manifest = false;
  bool goes_first = false;  // the step has parts of a set that goes before this one
};
struct HeaderRead {
  enum Verdict { kGood, kBad, kAbsent } verdict;
};
struct ManifestPut {
  enum Outcome { kDone, kExists, kUnknown } outcome;
};
struct ManifestRead {
  enum What { kOurs, kOther, kDamaged, kAbsent } what;
};
struct OtherVerified {
  bool good;
};
struct ManifestRemoved {};
struct StoreFailed {};  // the effect did not happen or its outcome is not known
using PublishEvent = std::variant<SetListed, HeaderRead, ManifestPut, ManifestRead, OtherVerified,
                                  ManifestRemoved, StoreFailed>;

struct Publisher {
  enum class Phase {
    kListing,
    kReadingHeaders,
    kPutting,
    kReadingManifest,
    kVerifyingOther,
    kReplacing,
    kConfirming,
    kWithdrawing,
    kDone
  };
  Phase phase = Phase::kListing;
  int of = 1;
  int own_part = 0;
  int header = 0;            // kReadingHeaders: the one being read
  bool parts_there = false;  // when last listed
  bool may_replace = false;
  bool replaced = false;  // once only
  bool unknown = false;   // an own put may still land
  friend auto operator<=>(const Publisher&, const Publisher&) = default;
};

struct PublishDecision {
  Publisher next;
  PublishEffect effect;
  std::string_view reason;  // one static sentence
};
// `superseded`: a checkpoint of a later step has been verified.
[[nodiscard]] PublishDecision start_publishing(int of, int own_part, bool superseded);
// Total: an event that does not fit the phase changes nothing and says so, repeating the effect
// that is waited for.
[[nodiscard]] PublishDecision decide(const Publisher& state, const PublishEvent& event);

}  // namespace surefoot
