#include "checkpoint/commit.h"

#include <algorithm>

namespace surefoot {
namespace {

using Phase = Publisher::Phase;

PublishDecision go(Publisher state, Phase phase, PublishEffect effect, std::string_view reason) {
  state.phase = phase;
  return {state, effect, reason};
}

PublishDecision done(const Publisher& state, PublishOutcome outcome, std::string_view reason) {
  return go(state, Phase::kDone, PublishDone{outcome}, reason);
}

// What the phase waits for.
PublishEffect pending(const Publisher& state) {
  switch (state.phase) {
    case Phase::kListing:
    case Phase::kConfirming:
      return ListSet{};
    case Phase::kReadingHeaders:
      return ReadHeader{state.header};
    case Phase::kPutting:
      return PutManifest{};
    case Phase::kReadingManifest:
      return ReadManifest{};
    case Phase::kVerifyingOther:
      return VerifyOther{};
    case Phase::kReplacing:
    case Phase::kWithdrawing:
      return RemoveManifest{};
    case Phase::kDone:
      break;
  }
  return PublishDone{PublishOutcome::kFailed};
}

PublishDecision ignore(const Publisher& state) {
  return {state, pending(state), "this event does not belong here: ignored"};
}

PublishDecision withdraw(const Publisher& state) {
  return go(state, Phase::kWithdrawing, RemoveManifest{},
            "the manifest of this set stands but parts are gone: withdrawing it");
}

PublishDecision replace(Publisher state) {
  if (!state.may_replace || state.replaced) {
    return done(state, PublishOutcome::kWaiting,
                "a damaged manifest of this step stands and is not ours to replace");
  }
  state.replaced = true;
  return go(state, Phase::kReplacing, RemoveManifest{},
            "the manifest that stands is damaged: replacing it by this whole set");
}

// A manifest is known to be there and readable as `what`.
PublishDecision on_manifest(const Publisher& state, ManifestRead::What what) {
  switch (what) {
    case ManifestRead::kOurs:
      // Also when parts were missing in the first look: somebody else may have published the set
      // since, so only a look after the manifest was seen can tell that they are gone.
      return go(state, Phase::kConfirming, ListSet{},
                "this set is published: looking whether its parts are still there");
    case ManifestRead::kOther:
      return go(state, Phase::kVerifyingOther, VerifyOther{},
                "another set of this step is published: reading it back");
    case ManifestRead::kDamaged:
      if (!state.parts_there) break;
      return replace(state);
    case ManifestRead::kAbsent:
      return done(state, state.unknown ? PublishOutcome::kFailed : PublishOutcome::kWaiting,
                  "the manifest is not there: looking again later");
  }
  return done(state, PublishOutcome::kWaiting, "parts of this set are missing");
}

struct Decide {
  const Publisher& state;

  PublishDecision operator()(const SetListed& event) const {
    const bool complete =
        static_cast<int>(event.parts.size()) == state.of &&
        std::all_of(event.parts.begin(), event.parts.end(), [](bool there) { return there; });
    if (state.phase == Phase::kConfirming) {
      if (!complete && event.manifest) return withdraw(state);
      if (!complete) {
        return done(state, PublishOutcome::kWithdrawn, "somebody removed the manifest and parts");
      }
      if (!event.manifest) {
        return done(state, PublishOutcome::kWaiting,
                    "somebody removed the manifest: looking again later");
      }
      return done(state, PublishOutcome::kPublished, "published, and all parts are there");
    }
    if (state.phase != Phase::kListing) return ignore(state);
    Publisher next = state;
    next.parts_there = complete;
    next.may_replace = state.own_part == 0 && !event.goes_first;
    if (event.manifest) {
      return go(next, Phase::kReadingManifest, ReadManifest{},
                "a manifest of this step stands: reading it");
    }
    if (!complete) return done(next, PublishOutcome::kWaiting, "parts of this set are missing");
    next.header = 0;
    return go(next, Phase::kReadingHeaders, ReadHeader{0},
              "all parts are there: checking their headers");
  }

  PublishDecision operator()(const HeaderRead& event) const {
    if (state.phase != Phase::kReadingHeaders) return ignore(state);
    if (event.verdict == HeaderRead::kBad)
      return done(state, PublishOutcome::kRefused, "a part is damaged or of another set");
    if (event.verdict == HeaderRead::kAbsent)
      return done(state, PublishOutcome::kWaiting, "parts of this set are missing");
    Publisher next = state;
    ++next.header;
    if (next.header < state.of) {
      return go(next, Phase::kReadingHeaders, ReadHeader{next.header},
                "all parts are there: checking their headers");
    }
    return go(next, Phase::kPutting, PutManifest{}, "the set is complete: publishing");
  }

  PublishDecision operator()(const ManifestPut& event) const {
    if (state.phase != Phase::kPutting) return ignore(state);
    Publisher next = state;
    switch (event.outcome) {
      case ManifestPut::kDone:
        return go(next, Phase::kConfirming, ListSet{},
                  "this set is published: looking whether its parts are still there");
      case ManifestPut::kUnknown:
        next.unknown = true;
        return go(next, Phase::kReadingManifest, ReadManifest{},
                  "it is not known whether the manifest appeared: reading it");
      case ManifestPut::kExists:
        break;
    }
    return go(next, Phase::kReadingManifest, ReadManifest{},
              "somebody else was first: reading the manifest");
  }

  PublishDecision operator()(const ManifestRead& event) const {
    if (state.phase != Phase::kReadingManifest) return ignore(state);
    return on_manifest(state, event.what);
  }

  PublishDecision operator()(const OtherVerified& event) const {
    if (state.phase != Phase::kVerifyingOther) return ignore(state);
    if (event.good) {
      return done(state, PublishOutcome::kSuperseded,
                  "a good checkpoint of this step by another set stands");
    }
    if (!state.parts_there)
      return done(state, PublishOutcome::kWaiting, "parts of this set are missing");
    return replace(state);
  }

  PublishDecision operator()(const ManifestRemoved&) const {
    if (state.phase == Phase::kWithdrawing) {
      return done(state, PublishOutcome::kWithdrawn,
                  "parts of this set were removed: its manifest is withdrawn");
    }
    if (state.phase != Phase::kReplacing) return ignore(state);
    Publisher next = state;
    next.header = 0;
    return go(next, Phase::kReadingHeaders, ReadHeader{0},
              "the damaged manifest is removed: checking the headers of this set");
  }

  PublishDecision operator()(const StoreFailed&) const {
    if (state.phase == Phase::kDone) return ignore(state);
    return done(state, PublishOutcome::kFailed, "the store failed: looking again later");
  }
};

}  // namespace

std::string_view name(PublishOutcome outcome) {
  switch (outcome) {
    case PublishOutcome::kPublished:
      return "published";
    case PublishOutcome::kWaiting:
      return "waiting";
    case PublishOutcome::kSuperseded:
      return "superseded";
    case PublishOutcome::kWithdrawn:
      return "withdrawn";
    case PublishOutcome::kRefused:
      return "refused";
    case PublishOutcome::kFailed:
      return "failed";
  }
  return "?";
}

PublishDecision start_publishing(int of, int own_part, bool superseded) {
  Publisher state;
  state.of = of;
  state.own_part = own_part;
  if (superseded) {
    return done(state, PublishOutcome::kSuperseded,
                "a checkpoint of this or a later step has been verified");
  }
  return go(state, Phase::kListing, ListSet{}, "looking for the parts of the set");
}

PublishDecision decide(const Publisher& state, const PublishEvent& event) {
  return std::visit(Decide{state}, event);
}

}  // namespace surefoot
