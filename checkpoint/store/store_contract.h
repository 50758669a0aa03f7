// What every Store must do, as one suite. An adapter's test instantiates it with a factory:
//
//   INSTANTIATE_TEST_SUITE_P(File, StoreContract, ::testing::Values(StoreFixture{...}));
//
// A deviation of an adapter is a named predicate of StoreFixture, never a skipped test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/store.h"

namespace surefoot::testing {

// A place where stores can be opened, several at once, that all see the same objects. Cleaned up
// when destroyed.
class StorePlace {
 public:
  virtual ~StorePlace() = default;
  virtual std::unique_ptr<Store> open() = 0;
};

struct StoreFixture {
  std::string name;
  std::function<std::unique_ptr<StorePlace>()> make;
  bool threads = true;  // two stores of one place may be used by two threads
  // Of writers whose puts overlap one is told that it won. Where not, several may be, and the
  // object of one of those stands.
  bool one_winner = true;
  bool one_large_winner = true;  // the same, of objects of many MiB
  // Overlapping puts of objects of many MiB leave a whole one of a writer that was told that it
  // won.
  bool large_contest = true;
};

inline std::ostream& operator<<(std::ostream& out, const StoreFixture& fixture) {
  return out << fixture.name;
}

class StoreContract : public ::testing::TestWithParam<StoreFixture> {
 protected:
  std::unique_ptr<StorePlace> place = GetParam().make();
  std::unique_ptr<Store> store = place->open();
  Time later = now() + std::chrono::minutes(1);

  Status put(const std::string& name, std::string_view content) {
    return put_if_absent(*store, name, content, later);
  }
  std::string get(const std::string& name) {
    auto content = read_object(*store, name, 64 << 20, later);
    return content ? *content : "error: " + content.error().message;
  }
  std::vector<std::string> names(const std::string& prefix) {
    const auto objects = store->list(prefix, later);
    std::vector<std::string> names;
    if (!objects) return {"error: " + objects.error().message};
    for (const ObjectInfo& object : *objects) names.push_back(object.name);
    return names;
  }
};

TEST_P(StoreContract, ReadsBackWhatWasPut) {
  ASSERT_TRUE(put("step-00000000001/manifest.json", "hello"));
  EXPECT_EQ(get("step-00000000001/manifest.json"), "hello");
  std::string middle(3, ' ');
  ASSERT_TRUE(store->read("step-00000000001/manifest.json", 1,
                          std::as_writable_bytes(std::span(middle)), later));
  EXPECT_EQ(middle, "ell");
}

TEST_P(StoreContract, TakesAnEmptyObject) {
  ASSERT_TRUE(put("empty", ""));
  EXPECT_EQ(get("empty"), "");
  EXPECT_EQ(names(""), std::vector<std::string>{"empty"});
}

TEST_P(StoreContract, TakesAnObjectOfManyPieces) {
  std::string content(9 * 1000 * 1000 + 1, '\0');
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<char>(i * 2654435761U >> 13);
  ASSERT_TRUE(put("large", content));
  EXPECT_TRUE(get("large") == content);
  const auto objects = store->list("large", later);
  ASSERT_TRUE(objects);
  EXPECT_EQ(objects->front().bytes, static_cast<std::int64_t>(content.size()));
}

TEST_P(StoreContract, NeverReplacesAnObject) {
  ASSERT_TRUE(put("a/b", "first"));
  const auto second = put("a/b", "second");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kExists);
  EXPECT_EQ(get("a/b"), "first");
}

TEST_P(StoreContract, LetsOneOfManyWritersWin) {
  if (!GetParam().threads) {
    ASSERT_TRUE(put("contested", "0"));
    EXPECT_EQ(put_if_absent(*place->open(), "contested", "1", later).error().code, Code::kExists);
    return;
  }
  constexpr int kWriters = 4;
  // Stores may have another way for large objects.
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{9} << 20}) {
    if (bytes > 1 && !GetParam().large_contest) continue;
    const std::string name = fmt::format("step/contested-{}", bytes);
    const auto content = [bytes](int writer) {
      return std::string(bytes, static_cast<char>('0' + writer));
    };
    std::vector<Status> outcomes(kWriters);
    std::vector<std::unique_ptr<Store>> stores;
    for (int i = 0; i < kWriters; ++i) stores.push_back(place->open());
    std::vector<std::thread> writers;
    for (int i = 0; i < kWriters; ++i) {
      writers.emplace_back([&, i] {
        outcomes[static_cast<std::size_t>(i)] =
            put_if_absent(*stores[static_cast<std::size_t>(i)], name, content(i), later);
      });
    }
    for (std::thread& writer : writers) writer.join();
    std::set<std::string> winners;
    for (int i = 0; i < kWriters; ++i) {
      const Status& outcome = outcomes[static_cast<std::size_t>(i)];
      if (outcome) {
        winners.insert(content(i));
      } else {
        EXPECT_EQ(outcome.error().code, Code::kExists) << outcome.error().message;
      }
    }
    if (bytes == 1 ? GetParam().one_winner : GetParam().one_large_winner) {
      EXPECT_EQ(winners.size(), 1u);
    }
    EXPECT_TRUE(winners.contains(get(name)));
    EXPECT_EQ(put(name, "later").error().code, Code::kExists);
  }
}

TEST_P(StoreContract, ShowsNothingOfAPutWhoseSourceFails) {
  int pieces = 0;
  const std::string piece(1000, 'x');
  const ByteSource source = [&]() -> Result<std::span<const std::byte>> {
    if (++pieces == 3) return error(Code::kCorrupt, "the source is bad");
    return as_bytes(piece);
  };
  const auto outcome = store->put_if_absent("folder/half", 5000, source, later);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCorrupt);
  EXPECT_TRUE(names("").empty());
  EXPECT_TRUE(put("folder/half", "whole"));
}

TEST_P(StoreContract, ListsByPrefixSortedByName) {
  for (const char* name : {"step-2/b", "step-2/a", "step-1/z", "step-10/a", "job.json"})
    ASSERT_TRUE(put(name, name));
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(""), (Names{"job.json", "step-1/z", "step-10/a", "step-2/a", "step-2/b"}));
  EXPECT_EQ(names("step-1"), (Names{"step-1/z", "step-10/a"}));
  EXPECT_EQ(names("step-1/"), (Names{"step-1/z"}));
  EXPECT_EQ(names("step-2/b"), (Names{"step-2/b"}));
  EXPECT_EQ(names("step-3/"), Names{});
}

TEST_P(StoreContract, SaysWhenThereIsNothingToRead) {
  std::string into(1, ' ');
  const auto outcome =
      store->read("nowhere/nothing", 0, std::as_writable_bytes(std::span(into)), later);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kNotFound);
  EXPECT_EQ(read_object(*store, "nothing", 10, later).error().code, Code::kNotFound);
}

TEST_P(StoreContract, SaysWhenAnObjectIsShorterThanAsked) {
  ASSERT_TRUE(put("short", "12345"));
  std::string into(6, ' ');
  const auto outcome = store->read("short", 0, std::as_writable_bytes(std::span(into)), later);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCorrupt);
  EXPECT_EQ(read_object(*store, "short", 4, later).error().code, Code::kCorrupt);
}

TEST_P(StoreContract, RemovesAndIsContentWhenThereIsNothingToRemove) {
  ASSERT_TRUE(put("step-1/a", "a"));
  ASSERT_TRUE(put("step-1/b", "b"));
  EXPECT_TRUE(store->remove("step-1/a", later));
  EXPECT_TRUE(store->remove("step-1/a", later));
  EXPECT_TRUE(store->remove("step-7/a", later));
  EXPECT_EQ(names(""), std::vector<std::string>{"step-1/b"});
  EXPECT_TRUE(store->remove("step-1/b", later));
  EXPECT_TRUE(names("").empty());
  EXPECT_TRUE(put("step-1/a", "again"));
  EXPECT_EQ(get("step-1/a"), "again");
}

TEST_P(StoreContract, ShowsOneStoresObjectsToAnother) {
  const auto other = place->open();
  ASSERT_TRUE(put("a/b", "shared"));
  EXPECT_EQ(*read_object(*other, "a/b", 10, later), "shared");
  ASSERT_TRUE(other->remove("a/b", later));
  EXPECT_TRUE(names("").empty());
  std::string into(1, ' ');
  EXPECT_EQ(store->read("a/b", 0, std::as_writable_bytes(std::span(into)), later).error().code,
            Code::kNotFound);
}

TEST_P(StoreContract, DoesNothingAfterItsDeadline) {
  const Time past = now() - std::chrono::seconds(1);
  const auto outcome = put_if_absent(*store, "late", "late", past);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kRetry);
  EXPECT_TRUE(names("").empty());
  std::string into(1, ' ');
  EXPECT_EQ(store->read("late", 0, std::as_writable_bytes(std::span(into)), past).error().code,
            Code::kRetry);
  EXPECT_EQ(store->list("", past).error().code, Code::kRetry);
  EXPECT_EQ(store->remove("late", past).error().code, Code::kRetry);
}

}  // namespace surefoot::testing
