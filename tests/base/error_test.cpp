// SPDX-License-Identifier: Apache-2.0
#include "gpushm/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/report/log.hpp"
#include "gpushm/client.hpp"

namespace gpushm {
namespace {

struct text_case {
  const char* operation;
  const char* object;
  const char* cause;
  const char* next_step;
  const char* text;
};

TEST(error_text, omits_empty_parts) {
  const text_case cases[] = {
      {"open",
       "w/llama",
       "no such segment",
       "try `gpushm ls`",
       "open \"w/llama\": no such segment (try `gpushm ls`)"},
      {"open", "w/llama", "no such segment", "", "open \"w/llama\": no such segment"},
      {"open", "", "no such segment", "look", "open: no such segment (look)"},
      {"", "w/llama", "no such segment", "look", "\"w/llama\": no such segment (look)"},
      {"", "", "no such segment", "look", "no such segment (look)"},
      {"", "", "no such segment", "", "no such segment"},
  };
  for (const text_case& each : cases) {
    const error why(errc::no_such_segment, each.operation, each.object, each.cause, each.next_step);
    EXPECT_STREQ(why.what(), each.text);
    EXPECT_EQ(why.code(), errc::no_such_segment);
    EXPECT_EQ(why.operation(), each.operation);
    EXPECT_EQ(why.object(), each.object);
    EXPECT_EQ(why.cause(), each.cause);
    EXPECT_EQ(why.next_step(), each.next_step);
  }
}

TEST(error_text, changes_operation_and_object) {
  const error changed =
      error(errc::quota_exceeded, "send", "x", "it is full", "remove some").in("create", "kv/0");
  EXPECT_STREQ(changed.what(), "create \"kv/0\": it is full (remove some)");
  EXPECT_EQ(changed.code(), errc::quota_exceeded);
}

TEST(error_details, are_kept_in_copies_and_with_another_operation) {
  const error plain(errc::peer_died, "wait", "t", "it died");
  EXPECT_EQ(plain.pid(), 0);
  EXPECT_EQ(plain.value(), std::nullopt);
  const error full(errc::peer_died, "wait", "t", "it died", "", {.pid = 42, .value = 0});
  const error changed = full.in("next", "c");
  EXPECT_EQ(changed.pid(), 42);
  EXPECT_EQ(changed.value(), 0U) << "a value that is 0 is one";
  error copy(plain);
  copy = changed;
  EXPECT_EQ(copy.pid(), 42);
  EXPECT_EQ(copy.details().value, 0U);
}

TEST(error_text, copy_outlives_original) {
  error copy(errc::forked, "a", "b", "c", "d");
  {
    const error other(errc::peer_died, "open", "kv", "it died", "start it again");
    copy = other;
  }
  EXPECT_STREQ(copy.what(), "open \"kv\": it died (start it again)");
  EXPECT_EQ(copy.cause(), "it died");
}

TEST(errc_names, all_exist_and_differ) {
  std::set<std::string_view> names;
  for (std::uint16_t value = 1; value <= 45; ++value) {
    const auto name = to_string(static_cast<errc>(value));
    if (value == 29) {  // abandoned before the first release; must never be reused
      EXPECT_EQ(name, "unknown");
      continue;
    }
    EXPECT_NE(name, "unknown") << value;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(to_string(static_cast<errc>(0)), "unknown");
  EXPECT_EQ(to_string(static_cast<errc>(46)), "unknown");
  EXPECT_EQ(to_string(static_cast<errc>(65535)), "unknown");
}

TEST(errc_names, none_is_prefix_or_suffix_of_another) {
  std::vector<std::string> names;
  for (std::uint16_t value = 1; value <= 1000; ++value) {
    std::string name(to_string(static_cast<errc>(value)));
    if (name != "unknown") {
      names.push_back(std::move(name));
    }
  }
  ASSERT_GE(names.size(), 38U);
  for (const std::string& shorter : names) {
    for (const std::string& longer : names) {
      EXPECT_FALSE(longer.starts_with(shorter + '_') || longer.ends_with('_' + shorter))
          << shorter << " and " << longer;
    }
  }
}

TEST(errno_mapping, keeps_actionable_errors) {
  const std::pair<int, errc> cases[] = {
      {EACCES, errc::permission_denied},
      {EPERM, errc::permission_denied},
      {ENOMEM, errc::out_of_memory},
      {ENOSPC, errc::out_of_memory},
      {EMFILE, errc::too_many_descriptors},
      {ENFILE, errc::too_many_descriptors},
      {ETOOMANYREFS, errc::too_many_descriptors},
      {ENOENT, errc::system_error},
      {EIO, errc::system_error},
      {0, errc::system_error},
      {-7, errc::system_error},
  };
  for (const auto& [number, code] : cases) {
    EXPECT_EQ(base::errc_of_errno(number), code) << number;
  }
}

TEST(errno_mapping, has_call_errno_and_next_step) {
  const std::pair<int, const char*> cases[] = {
      {EACCES,
       "serve \"/x\": bind: Permission denied (EACCES) (check the owner and mode, and that a "
       "container's policy allows it)"},
      {ENOSPC,
       "serve \"/x\": bind: No space left on device (ENOSPC) (free memory, or raise the limit of "
       "the "
       "file system or cgroup)"},
      {EMFILE,
       "serve \"/x\": bind: Too many open files (EMFILE) (raise the open file limit (ulimit -n))"},
      {ENOENT, "serve \"/x\": bind: No such file or directory (ENOENT) (check the path)"},
      {EISDIR, "serve \"/x\": bind: Is a directory (EISDIR) (name a file in it)"},
      {EIO, "serve \"/x\": bind: Input/output error (EIO) (see errno(3))"},
      {123456, "serve \"/x\": bind: unknown error (123456) (see errno(3))"},
  };
  for (const auto& [number, text] : cases) {
    try {
      base::throw_errno(number, "serve", "/x", "bind");
    } catch (const error& why) {
      EXPECT_STREQ(why.what(), text);
    }
  }
}

TEST(checked_call, retries_after_signal) {
  int calls = 0;
  const int result = base::checked("test", {}, "call", [&] {
    if (++calls < 3) {
      errno = EINTR;
      return -1;
    }
    return 7;
  });
  EXPECT_EQ(result, 7);
  EXPECT_EQ(calls, 3);
}

TEST(checked_call, returns_tolerated_and_throws_others) {
  const auto fail = [](int number) {
    return [number] {
      errno = number;
      return -1;
    };
  };
  EXPECT_EQ(base::checked("test", {}, "call", fail(ENOENT), {EEXIST, ENOENT}), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_THROW(base::checked("test", {}, "call", fail(EIO), {EEXIST, ENOENT}), error);
  EXPECT_THROW(base::checked("test", {}, "call", fail(ENOENT)), error);
}

TEST(log_sink, receives_lines_until_removed_and_may_throw) {
  std::vector<std::string> lines;
  set_log_sink([&](log_level, std::string_view text) {
    lines.emplace_back(text);
    throw std::runtime_error("a sink that fails");
  });
  base::log(log_level::warning, "one");
  base::log(log_level::error, "two");
  set_log_sink(nullptr);
  base::log(log_level::error, "three");
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two"}));
}

struct counting_traits {
  using value_type = int;
  static inline std::vector<int> closed;
  static int empty() noexcept { return -1; }
  static void close(int value) noexcept { closed.push_back(value); }
};
using counted = base::unique_handle<counting_traits>;

TEST(unique_handle, last_owner_closes_once) {
  counting_traits::closed.clear();
  {
    counted first(1);
    counted second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): the test is that moved-from is empty
    counted third(3);
    third = std::move(second);
    EXPECT_EQ(counting_traits::closed, (std::vector<int>{3}));
    counted& same = third;
    third = std::move(same);
    EXPECT_EQ(third.get(), 1);
    counted released(9);
    EXPECT_EQ(released.release(), 9);
    EXPECT_FALSE(released);
  }
  EXPECT_EQ(counting_traits::closed, (std::vector<int>{3, 1}));
}

}  // namespace
}  // namespace gpushm
